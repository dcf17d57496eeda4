// Numbers picked out of each row by their places in it: gather and scatter_add along the last dimension.
//
// ATen goes through an iterator that costs more than the copying, where numbers are few.
#pragma once

#include "executor/core/csrc/devices.h"

#include <vector>

namespace gradc {

// Of a step that picks numbers, or adds to them.
std::vector<KernelRow> pick_kernels();

} // namespace gradc
