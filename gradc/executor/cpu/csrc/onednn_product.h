// Products of bfloat16 matrices, alone or of batches, by oneDNN's primitives, as ATen makes them and kept from call to call (onednn.h).
#pragma once

#include "executor/core/csrc/devices.h"

#include <vector>

namespace gradc {

std::vector<KernelRow> onednn_product_kernels();

} // namespace gradc
