// The kernels of the CPU: all families, and out= variants.
//
// Small products and pointwise ops, sums and batch norms go straight to memory (product.h, pointwise.h, sums.h, norms.h); so do ATen's own
// loops, over iterators that are set up once (iterated.h); and out= variants write into memory of a value that is dead, or of our own
// (memory.h).
#pragma once

#include "executor/core/csrc/devices.h"

#include <string>
#include <vector>

namespace gradc {

const DeviceKernels& cpu_kernels();

// Names, without overload, of the ops that can write their result into memory given to them.
std::vector<std::string> ops_with_out();

} // namespace gradc
