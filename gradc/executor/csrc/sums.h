// Sums of the columns of a small matrix, which the gradient of a bias is, and of all of a small tensor, which a loss is; mse_loss and its
// gradient, too.
//
// ATen sums in a cascade, so that rounding errors grow slowly; the additions are done here in that same order
// (tests/executor/test_direct.py compares the bits).
#pragma once

#include "executor/csrc/plan.h"

#include <string>

namespace gradc {

// The call of a step that sums columns, or everything; null if it does something else.
Kernel find_sum_kernel(const Plan& plan, Step& step, const std::string& op);

} // namespace gradc
