// Products of bfloat16 matrices in float32, where that takes less time than oneDNN and makes its bits.
//
// oneDNN sums so much of the inner dimension in one chain, rounds each multiply-add, and adds up the chains. How long they are depends on
// the shape, the layout and the threads. It is asked once for each of these, by numbers that tell.
#pragma once

#include "executor/core/csrc/devices.h"

#include <vector>

namespace gradc {

std::vector<KernelRow> bfloat16_product_kernels();

} // namespace gradc
