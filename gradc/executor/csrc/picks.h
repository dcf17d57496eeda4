// Numbers picked out of each row by their places in it: gather and scatter_add along the last dimension.
//
// ATen goes through an iterator that costs more than the copying, where numbers are few.
#pragma once

#include "executor/csrc/plan.h"

#include <string>

namespace gradc {

// The call of a step that picks numbers or adds to them, which it puts the parameters into; null if it does something else.
Kernel find_picks_kernel(const Plan& plan, Step& step, const std::string& op);

} // namespace gradc
