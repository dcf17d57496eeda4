// Rows of a table by number: taken, or added up. What indexing does, and its gradient.
//
// ATen goes through an iterator that costs more than the copying, where rows are few. Additions to one row are made in the
// order of the indices, as ATen makes them while it uses one thread; with several, large ones are left to it.
#pragma once

#include "executor/core/csrc/devices.h"

#include <vector>

namespace gradc {

// Of a step that takes rows, or adds to them.
std::vector<KernelRow> row_kernels();

} // namespace gradc
