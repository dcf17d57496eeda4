// The gradient of a slice or of one row: zeros, with it at its place. Two passes over memory, where ATen would make three tensors.
#pragma once

#include "executor/csrc/plan.h"

#include <string>

namespace gradc {

// The call of such a step, which it puts the places into; null if it does something else.
Kernel find_padded_kernel(const Plan& plan, Step& step, const std::string& op);

} // namespace gradc
