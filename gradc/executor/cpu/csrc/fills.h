// Tensors filled with one number, and gradients of slices: zeros with a part written over.
#pragma once

#include "executor/core/csrc/devices.h"

#include <vector>

namespace gradc {

// Of a step that fills memory.
std::vector<KernelRow> fill_kernels();

} // namespace gradc
