// Pointwise calls: small pointwise ops as one loop over memory (loops.h), without setting up an iterator first.
//
// The result fills its memory, and every input has its layout, is a number, or is first spread to it: broadcasting copies.
#pragma once

#include "executor/core/csrc/devices.h"

#include <vector>

namespace gradc {

inline constexpr int64_t most_on_one_thread = 32768; // elements, as in ATen
inline constexpr size_t most_loop_inputs = 3;

// Of a step on tensors laid out as captured.
std::vector<KernelRow> pointwise_kernels();

} // namespace gradc
