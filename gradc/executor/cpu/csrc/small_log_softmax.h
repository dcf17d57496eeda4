// log_softmax over a last dimension that is too short for vector registers, as the classes of a small head, with its backward.
//
// ATen takes row after row, for each of which most of a register stays empty. Here exponentials and logarithms are those of all rows,
// side by side, by the functions that ATen uses; the few additions of a row are done in its order. Bits are compared with ATen's when
// the plan is made.
#pragma once

#include "executor/core/csrc/devices.h"

#include <cmath>
#include <vector>

namespace gradc {

// What comes out of log_softmax's backward where `grad` comes in, and `total` in the whole row. `is_fused`: the multiplication with the
// subtraction behind it, as ATen's kernel may have it.
inline float log_softmax_grad(bool is_fused, float grad, float exponential, float total) {
  return is_fused ? std::fma(-exponential, total, grad) : grad - exponential * total;
}

// Of such a step.
std::vector<KernelRow> few_classes_kernels();

} // namespace gradc
