// What must be known of a whole plan to find its stretches (fused_block.h).
#pragma once

#include "executor/core/csrc/plan.h"

#include <vector>

namespace gradc {

// `last_read` is the last step that reads each slot, one behind all steps for an output. Slots whose tensors share memory, by
// what the steps say, have the same number in `family`.
struct Known {
  explicit Known(const Plan& plan);
  const Plan& plan;
  std::vector<Index> last_read, family;
};

// True if a stretch may hold the step as a call with tensors: it makes new ones, or changes numbers in place.
bool may_call_with_tensors(const Plan& plan, const Step& step);

} // namespace gradc
