// Calls of a step: typed, or through the dispatcher.
//
// A typed call is made only for plain tensors of a device that has kernels (devices.h; run.cpp checks that each time), so it reaches the
// very kernel that the dispatcher would. What is in its table is a choice of speed, never of meaning.
#pragma once

#include "executor/core/csrc/plan.h"

#include <string>

namespace gradc {

// The typed call of an op, such as "aten::add.Tensor"; null where there is none.
Kernel find_typed(const std::string& op);

// The op that a step calls, with its overload: "aten::add.Tensor".
std::string name_of(const Step& step);

// The same of an op of at::_ops.
template <class Op>
std::string full_name() {
  const std::string name = Op::name, overload = Op::overload_name;
  return overload.empty() ? name : name + "." + overload;
}

// Calls a step, exactly if it can be, and tracks versions.
void call_step(const Step& step, Frame& frame, bool unobserved);

// Calls a step as if it had no exact call.
void call_as_eager(const Step& step, Frame& frame);

} // namespace gradc
