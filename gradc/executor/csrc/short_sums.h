// Sums over rows, or of columns, of a matrix that is too narrow for vector registers, or not much wider: of the last dimension, or of the
// first.
//
// ATen's iterator costs more than the additions, where these are few. They are done in its order, which is asked of it for each
// layout when the plan is made.
#pragma once

#include "executor/csrc/plan.h"

#include <string>

namespace gradc {

// The call of a step that makes such sums; null if it does something else.
Kernel find_short_sum_kernel(const Plan& plan, Step& step, const std::string& op);

} // namespace gradc
