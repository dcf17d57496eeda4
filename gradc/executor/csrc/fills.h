// Tensors filled with one number, and gradients of slices: zeros with a part written over.
#pragma once

#include "executor/csrc/plan.h"

#include <string>

namespace gradc {

// The call of a step that fills memory, which it puts the parameters into; null if it does something else.
Kernel find_fill_kernel(const Plan& plan, Step& step, const std::string& op);

} // namespace gradc
