// Dense calls: small pointwise ops as one loop over memory, without setting up an iterator first.
//
// Only ops whose arithmetic is fixed to the bit: one IEEE operation per element, or several that ATen rounds one by one
// (tests/executor/test_dense.py compares them on subnormals, infinities and NaNs; of two NaNs
// either may come through). All operands have the same layout.
#pragma once

#include "plan.h"

#include <string>

namespace gradc {

// The dense call of a step on tensors laid out as captured; null where there is none.
Kernel find_dense_kernel(const Plan& plan, const Step& step, const std::string& op);

} // namespace gradc
