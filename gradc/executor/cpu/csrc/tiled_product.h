// Products of float32 matrices in tiles that lie in registers, where each element is made as BLAS makes it: one chain of multiplications
// and additions in the order of the inner dimension, fused or not, or some such that are added up.
//
// BLAS copies both factors into panels and scales the result first, which takes as long as a small product itself. Which chains it
// makes is asked of it once for each shape, by numbers that tell one from the other; where a bit differs, on another machine or for
// another shape, BLAS makes the product.
#pragma once

#include "executor/core/csrc/plan.h"

#include <cstdint>

namespace gradc {

// BLAS: `out` as x y + beta out.
using CallBlas = void (*)(const Product& product, const float* x, const float* y, float beta, float* out);

// Whether products of the sizes and strides in `product.tiled`, or sums with them, may be made here, and notes there how. `call` makes
// those that are compared with. Not large ones, the less so where BLAS may use several threads.
bool may_multiply_in_tiles(Product& product, bool adds, CallBlas call);

// Whether that holds now, for a result at `out`: not for another number of threads.
bool is_tiled_now(const Product& product, const void* out);

// `out`, whose rows lie side by side, as x y, or as addend + x y. `addend_stride` is 0 for a row that is added to all; a null addend is none.
void multiply_in_tiles(
    const Product::Tiled& sizes, const float* x, const float* y, const float* addend, int64_t addend_stride, float* out);

} // namespace gradc
