// Matrix products, straight to the BLAS that torch itself calls.
//
// ATen decides by the strides which factor is transposed and whether the factors change places; the same decision is made
// here once, when the plan is made (tests/executor/test_direct.py compares the bits over layouts and sizes).
#pragma once

#include "executor/csrc/plan.h"

#include <string>

namespace gradc {

// The BLAS call of a step, which it puts the parameters into; null where there is none.
Kernel find_product_kernel(const Plan& plan, Step& step, const std::string& op);

// True if float32 products are full float32 products in the present settings.
bool has_full_precision();

} // namespace gradc
