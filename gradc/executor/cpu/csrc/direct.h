// Calls that go straight to memory: products, pointwise ops, sums and fills, on the addresses of their operands.
//
// Such a call makes no tensor and asks nothing of the dispatcher. All that it depends on but the addresses is known when the
// plan is made, so it may be used while the frame is exact. It never fails.
#pragma once

#include "executor/core/csrc/plan.h"

#include <cstddef>
#include <initializer_list>
#include <vector>

namespace gradc {

inline constexpr size_t most_direct_inputs = 8; // of one call

// The step's exact call that is `direct` on what the slots `inputs` hold: it takes the addresses from tensors and makes the result's.
// None for a null `direct`.
Exact call_directly(const Step& step, Direct direct, Payload payload, std::vector<Index> inputs);

// The slots of the operands at `positions`.
std::vector<Index> slots_at(const Step& step, std::initializer_list<size_t> positions);

// True if the step writes its result into its first input.
bool is_in_place(const Step& step);

// The layout of an operand's tensor when captured; null where it is no tensor, or not known.
const Meta* meta_at(const Plan& plan, const Operand& operand);

// The layout of a step's one result, in place that of its first input; null where it is not known, or nobody reads the result.
const Meta* result_meta(const Plan& plan, const Step& step);

// True for the layout of a contiguous tensor of that dtype, which is not empty.
bool is_plain_of(const Meta* meta, c10::ScalarType dtype);

} // namespace gradc
