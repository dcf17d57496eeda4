// Sums of the columns of a small matrix, which the gradient of a bias is, and of all of a small tensor, which a loss is; mse_loss and its
// gradient, too.
//
// ATen sums in a cascade, so that rounding errors grow slowly; the additions are done here in that same order
// (tests/executor/test_direct.py compares the bits).
#pragma once

#include "executor/core/csrc/devices.h"

#include <vector>

namespace gradc {

// Of a step that sums columns, or everything.
std::vector<KernelRow> sum_kernels();

} // namespace gradc
