// Products of bfloat16 matrices by float32 multiply-adds, in tiles that lie in registers.
//
// A processor's bfloat16 instruction adds two products at a time, that of the odd place first, each rounded as a fused float32 multiply-add.
// Where it takes longer than these two, or oneDNN does without it, float32 makes the same numbers faster.
#pragma once

#include "executor/core/csrc/payload.h"

#include <c10/util/BFloat16.h>

namespace gradc {

// Whether this machine has the instructions, or torch was told to take it for one that has.
bool has_bfloat16_tiles();

// Whether this thread takes denormals for 0 now, since the user had torch do so.
bool flushes_denormals();

// `out`, whose rows lie side by side, as x y, or as addend + x y; by all of torch's threads. One stride of each factor is 1.
// `addend_stride` is 0 for a row that is added to all; a null addend is none.
void multiply_bfloat16(
    const Bfloat16Product& sizes, const c10::BFloat16* x, const c10::BFloat16* y, const c10::BFloat16* addend, int64_t addend_stride,
    c10::BFloat16* out);

} // namespace gradc
