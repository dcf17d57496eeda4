// Sums over rows, or of columns, of a matrix that is too narrow for vector registers, or not much wider: of the last dimension, or of the
// first.
//
// ATen's iterator costs more than the additions, where these are few. They are done in its order, which is asked of it for each
// layout when the plan is made.
#pragma once

#include "executor/core/csrc/devices.h"

#include <vector>

namespace gradc {

// Of a step that makes such sums.
std::vector<KernelRow> short_sum_kernels();

} // namespace gradc
