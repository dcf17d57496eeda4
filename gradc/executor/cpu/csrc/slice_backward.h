// The gradient of a slice or of one row: zeros, with it at its place. Two passes over memory, where ATen would make three tensors.
#pragma once

#include "executor/core/csrc/devices.h"

#include <vector>

namespace gradc {

// Of a step that makes such a gradient.
std::vector<KernelRow> padded_kernels();

} // namespace gradc
