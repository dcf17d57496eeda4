// Tensors put one behind the other, as the gradient of a split is: copies of whole rows, where ATen would ask a dozen questions first.
#pragma once

#include "executor/core/csrc/devices.h"

#include <vector>

namespace gradc {

// Of a step that concatenates, whose parts lie side by side.
std::vector<KernelRow> cat_kernels();

} // namespace gradc
