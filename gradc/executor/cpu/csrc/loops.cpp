#include "executor/cpu/csrc/loops.h"

#include <cmath>
#include <string>
#include <unordered_map>

namespace gradc {
namespace {

template <class T>
const T* input(const void* const* inputs, size_t position) {
  return static_cast<const T*>(inputs[position]);
}

template <class F, class T>
GRADC_WIDE void unary(void* result, const void* const* inputs, int64_t size) {
  auto* out = static_cast<decltype(F::of(T()))*>(result);
  const T* a = input<T>(inputs, 0);
  for (int64_t i = 0; i < size; ++i) {
    out[i] = F::of(a[i]);
  }
}

template <class F, class T>
GRADC_WIDE void binary(void* result, const void* const* inputs, int64_t size) {
  auto* out = static_cast<decltype(F::of(T(), T()))*>(result);
  const T *a = input<T>(inputs, 0), *b = input<T>(inputs, 1);
  for (int64_t i = 0; i < size; ++i) {
    out[i] = F::of(a[i], b[i]);
  }
}

template <class F, class T>
GRADC_WIDE void binary_with_number(void* result, const void* const* inputs, int64_t size) {
  auto* out = static_cast<decltype(F::of(T(), T()))*>(result);
  const T *a = input<T>(inputs, 0), b = *input<T>(inputs, 1);
  for (int64_t i = 0; i < size; ++i) {
    out[i] = F::of(a[i], b);
  }
}

// Of a gradient, the argument, and the argument's sigmoid.
template <class T>
GRADC_WIDE void silu_backward(void* result, const void* const* inputs, int64_t size) {
  T* out = static_cast<T*>(result);
  const T *grad = input<T>(inputs, 0), *x = input<T>(inputs, 1), *sigmoid = input<T>(inputs, 2);
  for (int64_t i = 0; i < size; ++i) {
    out[i] = grad[i] * sigmoid[i] * std::fma(x[i], 1 - sigmoid[i], T(1));
  }
}

template <class T>
GRADC_WIDE void where(void* result, const void* const* inputs, int64_t size) {
  T* out = static_cast<T*>(result);
  const bool* chosen = input<bool>(inputs, 0);
  const T *a = input<T>(inputs, 1), *b = input<T>(inputs, 2);
  for (int64_t i = 0; i < size; ++i) {
    out[i] = chosen[i] ? a[i] : b[i];
  }
}

template <class T>
GRADC_WIDE void masked_fill(void* result, const void* const* inputs, int64_t size) {
  T* out = static_cast<T*>(result);
  const T *a = input<T>(inputs, 0), value = *input<T>(inputs, 2);
  const bool* mask = input<bool>(inputs, 1);
  for (int64_t i = 0; i < size; ++i) {
    out[i] = mask[i] ? value : a[i];
  }
}

template <class T>
GRADC_WIDE void clamp(void* result, const void* const* inputs, int64_t size) {
  T* out = static_cast<T*>(result);
  const T *a = input<T>(inputs, 0), low = *input<T>(inputs, 1), high = *input<T>(inputs, 2);
  for (int64_t i = 0; i < size; ++i) {
    const T raised = a[i] < low ? low : a[i];
    out[i] = high < raised ? high : raised;
  }
}

#define GRADC_UNARY(name, expression) \
  struct name {                       \
    template <class T>                \
    static auto of(T a) {             \
      return expression;              \
    }                                 \
  };
#define GRADC_BINARY(name, expression) \
  struct name {                        \
    template <class T>                 \
    static auto of(T a, T b) {         \
      return expression;               \
    }                                  \
  };

GRADC_UNARY(Same, a)
GRADC_UNARY(Neg, -a)
GRADC_UNARY(Abs, std::abs(a))
GRADC_UNARY(Reciprocal, T(1) / a)
GRADC_UNARY(Relu, a < 0 ? T(0) : a)
GRADC_UNARY(Not, !a)

GRADC_BINARY(Add, a + b)
GRADC_BINARY(Sub, a - b)
GRADC_BINARY(Mul, a* b)
GRADC_BINARY(Div, a / b)
GRADC_BINARY(Rsub, b - a)
GRADC_BINARY(TanhBackward, a* std::fma(-b, b, T(1)))
GRADC_BINARY(SigmoidBackward, a*(1 - b) * b)
GRADC_BINARY(ThresholdBackward, b <= 0 ? T(0) : a)
GRADC_BINARY(Eq, a == b)
GRADC_BINARY(Ne, a != b)
GRADC_BINARY(Lt, a < b)
GRADC_BINARY(Le, a <= b)
GRADC_BINARY(Gt, a > b)
GRADC_BINARY(Ge, a >= b)
GRADC_BINARY(And, a&& b)
GRADC_BINARY(Or, a || b)

template <class F>
Loops unary_loops(std::string_view parameters = "T") {
  return {parameters, false, false, &unary<F, float>, &unary<F, double>};
}

template <class F>
Loops binary_loops(std::string_view parameters, bool makes_bool = false, bool is_fused = false) {
  return {parameters, makes_bool, is_fused, &binary<F, float>, &binary<F, double>, nullptr,
          &binary_with_number<F, float>, &binary_with_number<F, double>};
}

template <class F>
Loops number_loops(std::string_view parameters, bool makes_bool = false) {
  return {parameters, makes_bool, false, &binary_with_number<F, float>, &binary_with_number<F, double>};
}

Loops bool_loops(std::string_view parameters, Loop loop) {
  return {parameters, true, false, nullptr, nullptr, loop};
}

using LoopTable = std::unordered_map<std::string_view, Loops>;

template <class F>
void add_comparison(LoopTable& table, std::string_view with_number, std::string_view with_tensor) {
  table[with_number] = number_loops<F>("TN", true);
  table[with_tensor] = binary_loops<F>("Tt", true);
}

LoopTable make_loop_table() {
  LoopTable table{
      {"aten::add.Tensor", binary_loops<Add>("Tt1")},
      {"aten::sub.Tensor", binary_loops<Sub>("Tt1")},
      {"aten::mul.Tensor", binary_loops<Mul>("Tt")},
      {"aten::div.Tensor", binary_loops<Div>("Tt")},
      {"aten::add.Scalar", number_loops<Add>("TN1")},
      {"aten::sub.Scalar", number_loops<Sub>("TN1")},
      {"aten::mul.Scalar", number_loops<Mul>("TN")},
      {"aten::div.Scalar", number_loops<Div>("TN")},
      {"aten::rsub.Scalar", number_loops<Rsub>("TN1")},
      {"aten::tanh_backward", binary_loops<TanhBackward>("TT", false, true)},
      {"aten::sigmoid_backward", binary_loops<SigmoidBackward>("TT")},
      {"aten::silu_backward", {"TTT", false, true, &silu_backward<float>, &silu_backward<double>}},
      {"aten::threshold_backward", binary_loops<ThresholdBackward>("TT0")},
      {"aten::pow.Tensor_Scalar", unary_loops<Same>("T1")}, // as in the gradient of a square
      {"aten::neg", unary_loops<Neg>()},
      {"aten::abs", unary_loops<Abs>()},
      {"aten::reciprocal", unary_loops<Reciprocal>()},
      {"aten::relu", unary_loops<Relu>()},
      {"aten::where.self", {"BTT", false, false, &where<float>, &where<double>}},
      {"aten::masked_fill.Scalar", {"TBN", false, false, &masked_fill<float>, &masked_fill<double>}},
      {"aten::clamp", {"TNN", false, false, &clamp<float>, &clamp<double>}},
      {"aten::logical_and", bool_loops("BB", &binary<And, bool>)},
      {"aten::logical_or", bool_loops("BB", &binary<Or, bool>)},
      {"aten::bitwise_and.Tensor", bool_loops("BB", &binary<And, bool>)},
      {"aten::bitwise_or.Tensor", bool_loops("BB", &binary<Or, bool>)},
      {"aten::logical_not", bool_loops("B", &unary<Not, bool>)},
      {"aten::bitwise_not", bool_loops("B", &unary<Not, bool>)},
  };
  add_comparison<Eq>(table, "aten::eq.Scalar", "aten::eq.Tensor");
  add_comparison<Ne>(table, "aten::ne.Scalar", "aten::ne.Tensor");
  add_comparison<Lt>(table, "aten::lt.Scalar", "aten::lt.Tensor");
  add_comparison<Le>(table, "aten::le.Scalar", "aten::le.Tensor");
  add_comparison<Gt>(table, "aten::gt.Scalar", "aten::gt.Tensor");
  add_comparison<Ge>(table, "aten::ge.Scalar", "aten::ge.Tensor");
  return table;
}

const LoopTable& loop_table() {
  static const LoopTable table = make_loop_table();
  return table;
}

} // namespace

std::string out_of_place(std::string_view op) {
  std::string name(op);
  const size_t end = std::min(name.find('.'), name.size());
  if (name[end - 1] == '_') {
    name.erase(end - 1, 1);
  }
  return name;
}

std::string in_place(std::string_view op) {
  std::string name(op);
  return name.insert(std::min(name.find('.'), name.size()), "_");
}

std::vector<std::string> ops_with_loops() {
  std::vector<std::string> ops;
  for (const auto& [op, loops] : loop_table()) {
    ops.emplace_back(op);
    ops.push_back(in_place(op));
  }
  return ops;
}

const Loops* find_loops(std::string_view op) {
  const auto found = loop_table().find(out_of_place(op));
  return found == loop_table().end() ? nullptr : &found->second;
}

} // namespace gradc
