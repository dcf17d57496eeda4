#include "executor/cpu/csrc/fills.h"

#include "executor/core/csrc/kernels.h"
#include "executor/cpu/csrc/direct.h"
#include "executor/cpu/csrc/memory.h"
#include "executor/cpu/csrc/numbers.h"

#include <ATen/Context.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace gradc {
namespace {

// ---- running

template <class T>
void call_fill(const Payload& payload, void* out, const void* const*) {
  const auto& filled = payload_as<Filled>(payload);
  T number;
  std::memcpy(&number, filled.number.data(), sizeof(T));
  std::fill_n(static_cast<T*>(out), filled.size, number);
}

void call_empty(const Step& step, Frame& frame) {
  const auto& context = at::globalContext();
  if (context.deterministicAlgorithms() && context.deterministicFillUninitializedMemory()) {
    return call_as_eager(step, frame);
  }
  frame.slots[step.outs[0]] = result_memory(step, frame);
}

// ---- preparing

// Where an op's number stands: a position among its operands, or the number itself. `zero_at`: where one has to be, or the op does
// something else.
struct NumberAt {
  int position = -1;
  double number = 0;
  int zero_at = -1;
};

const std::unordered_map<std::string, NumberAt>& filling_ops() {
  static const std::unordered_map<std::string, NumberAt> ops = {
      {"aten::zeros", {}},
      {"aten::zeros_like", {}},
      {"aten::new_zeros", {}},
      {"aten::zero_", {}},
      {"aten::ones", {-1, 1}},
      {"aten::ones_like", {-1, 1}},
      {"aten::new_ones", {-1, 1}},
      {"aten::full", {1}},
      {"aten::full_like", {1}},
      {"aten::new_full", {2}},
      {"aten::scalar_tensor", {0}},
      {"aten::fill_.Scalar", {1}},
      {"aten::pow.Tensor_Scalar", {-1, 1, 1}}, // whatever the base
  };
  return ops;
}

bool is_default(const c10::Argument& argument, const c10::IValue& given) {
  if (given.isNone()) {
    return true;
  }
  if (argument.name() == "device") {
    return true; // the step's, whose table this is
  }
  if (argument.name() == "layout") {
    return given.toLayout() == c10::Layout::Strided;
  }
  return argument.name() != "pin_memory" || !given.toBool();
}

// True if the result is strided, and not pinned.
bool is_made_plain(const Plan& plan, const Step& step) {
  const auto& arguments = step.op.schema().arguments();
  for (size_t i = 0; i < arguments.size(); ++i) {
    const Operand& operand = step.operands[i];
    if (operand.kind == Operand::Kind::constant && !is_default(arguments[i], plan.constants[operand.index].boxed)) {
      return false;
    }
  }
  return true;
}

Direct fill_of(c10::ScalarType dtype) {
  switch (dtype) {
    case c10::ScalarType::Float:
      return &call_fill<float>;
    case c10::ScalarType::Double:
      return &call_fill<double>;
    default:
      return nullptr;
  }
}

// True if memory laid out as known is all that the op makes.
bool makes_memory(const Plan& plan, const Step& step) {
  const Meta* meta = result_meta(plan, step);
  return meta && is_dense(*meta) && num_bytes(*meta) && (is_in_place(step) || has_sure_strides(*meta)) && is_made_plain(plan, step);
}

Exact find_fill(const Plan& plan, const Step& step) {
  const auto [position, number, zero_at] = filling_ops().at(name_of(step));
  if (!makes_memory(plan, step) || (zero_at >= 0 && number_at(plan, step.operands[zero_at]) != 0.0)) {
    return {};
  }
  const Meta& meta = *result_meta(plan, step);
  const auto given = position < 0 ? std::optional(number) : number_at(plan, step.operands[position]);
  const auto bytes = given ? bytes_of(*given, meta.dtype) : std::nullopt;
  if (!bytes) {
    return {};
  }
  const Filled filled{*bytes, c10::multiply_integers(meta.sizes)};
  return call_directly(step, fill_of(meta.dtype), filled, is_in_place(step) ? slots_at(step, {0}) : std::vector<Index>());
}

Exact find_empty(const Plan& plan, const Step& step) {
  return makes_memory(plan, step) ? Exact{&call_empty} : Exact();
}

} // namespace

std::vector<KernelRow> fill_kernels() {
  KernelRow fill{{}, &find_fill};
  for (const auto& [op, number] : filling_ops()) {
    fill.ops.push_back(op);
  }
  return {std::move(fill), {{"aten::empty_like", "aten::new_empty", "aten::empty.memory_format"}, &find_empty}};
}

} // namespace gradc
