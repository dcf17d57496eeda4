// Typed calls: an op's CPU kernel, without boxing its arguments and without computing where to dispatch.
//
// A typed call is made only for plain CPU tensors (run.cpp checks that each time), so it reaches the very kernel that the
// dispatcher would. What is in the tables is a choice of speed, never of meaning.
//
// Exact calls, while the frame is exact: views are made from their known strides, and out= variants write into the memory of
// a value that is dead. They leave the same sizes, strides and bits as the functional call.
#pragma once

#include "plan.h"

#include <string>
#include <vector>

namespace gradc {

// The typed call of an op, such as "aten::add.Tensor"; null where there is none.
Kernel find_kernel(const std::string& op);

// The exact call of a step that makes views, or reuses memory; null where there is none.
Kernel find_exact_kernel(const Step& step, const std::string& op);

// Names, without overload, of the ops with a call that reuses memory.
std::vector<std::string> ops_that_reuse();

} // namespace gradc
