// Typed calls: an op's CPU kernel, without boxing its arguments and without computing where to dispatch.
//
// A typed call is made only for plain CPU tensors (run.cpp checks that each time), so it reaches the very kernel that the
// dispatcher would. What is in the table is a choice of speed, never of meaning.
#pragma once

#include "plan.h"

#include <string>

namespace gradc {

// The typed call of an op, such as "aten::add.Tensor"; null where there is none.
Kernel find_kernel(const std::string& op);

} // namespace gradc
