// The backward of a cross entropy over many classes in one pass over memory.
//
// ATen fills a matrix with zeros and one number a row, goes over it and over the logarithms, and, where the scores are a slice, as those of
// a language model without its last token, copies what comes out into zeros: five passes that write, of which one is needed.
#pragma once

#include "executor/cpu/csrc/fused_block.h"
#include "executor/cpu/csrc/fused_block_known.h"

#include <memory>

namespace gradc {

// The steps of such a backward as a stretch, if they begin with `begin`; else null.
std::shared_ptr<const Stretch> find_cross_entropy_backward(const Known& known, Index begin);

} // namespace gradc
