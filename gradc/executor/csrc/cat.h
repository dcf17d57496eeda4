// Tensors put one behind the other, as the gradient of a split is: copies of whole rows, where ATen would ask a dozen questions first.
#pragma once

#include "executor/csrc/plan.h"

#include <string>

namespace gradc {

// The call of a step that concatenates, which it puts the sizes of the parts into; null if it does something else.
Kernel find_cat_kernel(const Plan& plan, Step& step, const std::string& op);

} // namespace gradc
