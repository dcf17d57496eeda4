#include "dense.h"

#include "memory.h"

#include <ATen/Version.h>

#include <cmath>
#include <unordered_map>

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define GRADC_WIDE __attribute__((target_clones("arch=haswell", "default")))
#else
#define GRADC_WIDE
#endif

namespace gradc {
namespace {

// So few that ATen would not use several threads either.
constexpr int64_t max_elements = 32768;

template <class T>
using Loop = void (*)(T* out, const T* a, const T* b, int64_t size);
template <class T>
using NumberLoop = void (*)(T* out, const T* a, T b, int64_t size);

// The same expression for float and double, over two tensors and over a tensor and a number. Compiled without contraction
// (setup.py): each operation rounds.
#define GRADC_LOOP(name, Real, expression)                                    \
  GRADC_WIDE void name(Real* out, const Real* as, const Real* bs, int64_t size) { \
    using T = Real;                                                           \
    for (int64_t i = 0; i < size; ++i) {                                      \
      const T a = as[i], b = bs[i];                          \
      out[i] = expression;                                                    \
    }                                                                         \
  }                                                                           \
  [[maybe_unused]] GRADC_WIDE void name##_number(Real* out, const Real* as, Real b, int64_t size) { \
    using T = Real;                                                           \
    for (int64_t i = 0; i < size; ++i) {                                      \
      const T a = as[i];                                                      \
      out[i] = expression;                                                    \
    }                                                                         \
  }
#define GRADC_LOOPS(name, expression)   \
  GRADC_LOOP(name##_float, float, expression) \
  GRADC_LOOP(name##_double, double, expression)

GRADC_LOOPS(add, a + b)
GRADC_LOOPS(sub, a - b)
GRADC_LOOPS(mul, a* b)
GRADC_LOOPS(div, a / b)
GRADC_LOOPS(tanh_backward, a* std::fma(-b, b, T(1)))
GRADC_LOOPS(sigmoid_backward, a*(1 - b) * b)
GRADC_LOOPS(threshold_backward, b <= 0 ? 0 : a)

template <class T>
const T* data_at(const Frame& frame, const Operand& operand) {
  return static_cast<const T*>(frame.slots[operand.index].toTensor().const_data_ptr());
}

void put_result(const Step& step, Frame& frame, at::Tensor result) {
  if (step.outs[0] >= 0) {
    frame.slots[step.outs[0]] = std::move(result);
  }
}

template <class T, Loop<T> loop>
void call_loop(const Step& step, Frame& frame) {
  const T* a = data_at<T>(frame, step.operands[0]);
  const T* b = data_at<T>(frame, step.operands[1]);
  at::Tensor result = result_memory(step, frame);
  loop(static_cast<T*>(result.mutable_data_ptr()), a, b, result.numel());
  put_result(step, frame, std::move(result));
}

template <class T, Loop<T> loop>
void call_in_place(const Step& step, Frame& frame) {
  at::Tensor result = frame.slots[step.operands[0].index].toTensor();
  const at::Tensor& other = frame.slots[step.operands[1].index].toTensor();
  if (result.storage().is_alias_of(other.storage())) {  // they may overlap in part, which is an error to report
    return step.kernel(step, frame);
  }
  T* data = static_cast<T*>(result.mutable_data_ptr());
  loop(data, data, static_cast<const T*>(other.const_data_ptr()), result.numel());
  put_result(step, frame, std::move(result));
}

template <class T, NumberLoop<T> loop>
void call_number_loop(const Step& step, Frame& frame) {
  const T* a = data_at<T>(frame, step.operands[0]);
  const auto b = static_cast<T>(frame[step.operands[1]].toTensor().item<double>());
  at::Tensor result = result_memory(step, frame);
  loop(static_cast<T*>(result.mutable_data_ptr()), a, b, result.numel());
  put_result(step, frame, std::move(result));
}

// For float and double; null where there is none.
struct Calls {
  Kernel on_float = nullptr, on_double = nullptr, with_number_float = nullptr, with_number_double = nullptr;
  bool is_fused = false; // as ATen's kernels are for machines that have fused multiply-adds
};

#define GRADC_CALLS(name) &call_loop<float, name##_float>, &call_loop<double, name##_double>
#define GRADC_NUMBER_CALLS(name) &call_number_loop<float, name##_float_number>, &call_number_loop<double, name##_double_number>
#define GRADC_IN_PLACE_CALLS(name) &call_in_place<float, name##_float>, &call_in_place<double, name##_double>

const std::unordered_map<std::string, Calls>& table() {
  static const std::unordered_map<std::string, Calls> calls{
      {"aten::add.Tensor", {GRADC_CALLS(add), GRADC_NUMBER_CALLS(add)}},
      {"aten::sub.Tensor", {GRADC_CALLS(sub), GRADC_NUMBER_CALLS(sub)}},
      {"aten::mul.Tensor", {GRADC_CALLS(mul), GRADC_NUMBER_CALLS(mul)}},
      {"aten::div.Tensor", {GRADC_CALLS(div), GRADC_NUMBER_CALLS(div)}},
      {"aten::add_.Tensor", {GRADC_IN_PLACE_CALLS(add)}},
      {"aten::mul_.Tensor", {GRADC_IN_PLACE_CALLS(mul)}},
      {"aten::tanh_backward", {GRADC_CALLS(tanh_backward), nullptr, nullptr, true}},
      {"aten::sigmoid_backward", {GRADC_CALLS(sigmoid_backward)}},
      {"aten::threshold_backward", {GRADC_CALLS(threshold_backward)}},
  };
  return calls;
}

bool is_alike(const Meta& a, const Meta& b) {
  return a.dtype == b.dtype && a.sizes == b.sizes && a.strides == b.strides;
}

const c10::IValue* constant_at(const Plan& plan, const Operand& operand) {
  return operand.kind == Operand::Kind::constant ? &plan.constants[operand.index].boxed : nullptr;
}

bool is_constant_equal(const Plan& plan, const Operand& operand, double value) {
  const auto* boxed = constant_at(plan, operand);
  return boxed && boxed->isScalar() && !boxed->toScalar().isComplex() && boxed->toScalar().toDouble() == value;
}

// A Python float that became a tensor: it takes part with the other operand's dtype.
bool is_number(const Plan& plan, const Operand& operand) {
  const auto* boxed = constant_at(plan, operand);
  return boxed && boxed->isTensor() && boxed->toTensor().unsafeGetTensorImpl()->is_wrapped_number() &&
      boxed->toTensor().scalar_type() == c10::ScalarType::Double;
}

bool has_fused_kernels() {
  const auto capability = at::get_cpu_capability();
  return capability == "AVX2" || capability == "AVX512";
}

} // namespace

Kernel find_dense_kernel(const Plan& plan, const Step& step, const std::string& op) {
  const auto found = table().find(op);
  if (found == table().end() || (found->second.is_fused && !has_fused_kernels())) {
    return nullptr;
  }
  const bool is_in_place = step.op.schema().is_mutable();
  if (!is_in_place && step.outs[0] < 0) {
    return nullptr;
  }
  const auto& result = plan.metas[is_in_place ? step.operands[0].index : step.outs[0]];
  const auto fits = [&](const Operand& operand) {
    return operand.kind == Operand::Kind::slot && plan.metas[operand.index] && is_alike(*plan.metas[operand.index], *result);
  };
  if (!result || !is_dense(*result) || !fits(step.operands[0])) {
    return nullptr;
  }
  const auto elements = c10::multiply_integers(result->sizes);
  // The third argument: alpha, or threshold_backward's threshold.
  const double third = op == "aten::threshold_backward" ? 0 : 1;
  if (elements == 0 || elements > max_elements ||
      (step.operands.size() > 2 && !is_constant_equal(plan, step.operands[2], third))) {
    return nullptr;
  }
  const bool with_number = is_number(plan, step.operands[1]);
  if (!with_number && !fits(step.operands[1])) {
    return nullptr;
  }
  const Calls& calls = found->second;
  switch (result->dtype) {
    case c10::ScalarType::Float:
      return with_number ? calls.with_number_float : calls.on_float;
    case c10::ScalarType::Double:
      return with_number ? calls.with_number_double : calls.on_double;
    default:
      return nullptr;
  }
}

} // namespace gradc
