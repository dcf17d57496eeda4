// Typed calls: an op's CPU kernel, without boxing its arguments and without computing where to dispatch.
//
// A typed call is made only for plain CPU tensors (run.cpp checks that each time), so it reaches the very kernel that the
// dispatcher would. What is in the tables is a choice of speed, never of meaning.
//
// Exact calls, while the frame is exact: views are made from their known strides; small products and pointwise ops, sums and
// batch norms go straight to memory (product.h, pointwise.h, sums.h, norms.h); so do ATen's own loops, over iterators that are
// set up once (iterated.h); and out= variants write into memory of a value that is dead, or of our own (memory.h). They leave
// the same sizes, strides and bits as the functional call.
#pragma once

#include "executor/csrc/plan.h"

#include <string>
#include <vector>

namespace gradc {

// The typed call of an op, such as "aten::add.Tensor"; null where there is none.
Kernel find_kernel(const std::string& op);

// Exact calls of some ops. `find` makes that of a step which calls one of them; none where the step does not fit.
struct KernelRow {
  std::vector<std::string> ops; // with overloads
  Exact (*find)(const Plan& plan, const Step& step);
};

// The exact call of a step: the first that fits.
Exact find_exact(const Plan& plan, const Step& step);

// The op that a step calls, with its overload: "aten::add.Tensor".
std::string name_of(const Step& step);

// Calls a step, exactly if it can be, and tracks versions.
void call_step(const Step& step, Frame& frame, bool unobserved);

// Calls a step as if it had no exact call.
void call_as_eager(const Step& step, Frame& frame);

// Names, without overload, of the ops that can write their result into memory given to them.
std::vector<std::string> ops_with_out();

} // namespace gradc
