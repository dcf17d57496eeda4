#include "executor/cpu/csrc/direct.h"

#include "executor/core/csrc/kernels.h"
#include "executor/cpu/csrc/memory.h"

#include <array>
#include <utility>

namespace gradc {
namespace {

using Addresses = std::array<const void*, most_direct_inputs>;

Addresses addresses_of(const Step& step, const Frame& frame) {
  Addresses addresses{};
  for (size_t i = 0; i < step.exact.inputs.size(); ++i) {
    addresses[i] = memory_at(frame, step.exact.inputs[i]);
  }
  return addresses;
}

void put(const Step& step, Frame& frame, at::Tensor result) {
  if (const Index slot = step.outs[0]; slot >= 0) {
    frame.slots[slot] = std::move(result);
  }
}

void call_out_of_place(const Step& step, Frame& frame) {
  if (step.exact.needs_full_precision && !frame.has_full_precision) {
    return call_as_eager(step, frame);
  }
  at::Tensor result = result_memory(step, frame);
  step.exact.direct(step.exact.payload, result.mutable_data_ptr(), addresses_of(step, frame).data());
  put(step, frame, std::move(result));
}

void call_in_place(const Step& step, Frame& frame) {
  at::Tensor result = frame.slots[step.exact.inputs[0]].toTensor();
  for (size_t i = 1; i < step.exact.inputs.size(); ++i) {
    if (result.storage().is_alias_of(frame.slots[step.exact.inputs[i]].toTensor().storage())) {
      return call_as_eager(step, frame); // they may overlap in part, which is an error to report
    }
  }
  step.exact.direct(step.exact.payload, result.mutable_data_ptr(), addresses_of(step, frame).data());
  put(step, frame, std::move(result));
}

} // namespace

bool is_in_place(const Step& step) {
  return step.op.schema().is_mutable();
}

const Meta* meta_at(const Plan& plan, const Operand& operand) {
  return operand.kind == Operand::Kind::slot && plan.metas[operand.index] ? &*plan.metas[operand.index] : nullptr;
}

const Meta* result_meta(const Plan& plan, const Step& step) {
  if (step.outs.size() != 1) {
    return nullptr;
  }
  if (is_in_place(step)) {
    return meta_at(plan, step.operands[0]);
  }
  return step.outs[0] >= 0 && plan.metas[step.outs[0]] ? &*plan.metas[step.outs[0]] : nullptr;
}

bool is_plain_of(const Meta* meta, c10::ScalarType dtype) {
  return meta && meta->dtype == dtype && has_plain_strides(*meta) && num_bytes(*meta) > 0;
}

Exact call_directly(const Step& step, Direct direct, Payload payload, std::vector<Index> inputs) {
  if (!direct) {
    return {};
  }
  return {is_in_place(step) ? &call_in_place : &call_out_of_place, direct, std::move(inputs), std::move(payload)};
}

std::vector<Index> slots_at(const Step& step, std::initializer_list<size_t> positions) {
  std::vector<Index> slots;
  for (const size_t position : positions) {
    slots.push_back(step.operands[position].index);
  }
  return slots;
}

} // namespace gradc
