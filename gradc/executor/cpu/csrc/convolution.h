// Convolutions by oneDNN's primitives, as ATen makes them and kept from call to call (onednn.h).
#pragma once

#include "executor/core/csrc/devices.h"

#include <vector>

namespace gradc {

std::vector<KernelRow> convolution_kernels();

} // namespace gradc
