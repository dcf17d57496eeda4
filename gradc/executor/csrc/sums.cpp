#include "executor/csrc/sums.h"

#include "executor/csrc/cascade.h"
#include "executor/csrc/direct.h"
#include "executor/csrc/loops.h"
#include "executor/csrc/memory.h"
#include "executor/csrc/numbers.h"
#include "executor/csrc/prove.h"

#include <ATen/ATen.h>
#include <ATen/core/Reduction.h>

#include <algorithm>
#include <array>
#include <type_traits>
#include <vector>

namespace gradc {
namespace {

constexpr int64_t most_elements = 32768; // beyond, ATen may use several threads, each with a cascade of its own
constexpr int64_t num_columns = 16; // columns at a time

// What `find` makes of a zero of the dtype; null for one that is not summed here.
template <class Find>
Direct of_dtype(c10::ScalarType dtype, Find find) {
  switch (dtype) {
    case c10::ScalarType::Float:
      return find(float());
    case c10::ScalarType::Double:
      return find(double());
    default:
      return nullptr;
  }
}

// ATen takes as many columns at a time as fill four vector registers, and adds up what is left in another order.
template <class T>
constexpr int64_t whole_columns = 4 * 32 / sizeof(T);

template <class T>
GRADC_WIDE void sum_columns(T* out, const T* in, int64_t rows, int64_t stride) {
  const auto sums = sum_in_cascade<num_columns>(in, rows, stride, std::integral_constant<int64_t, 1>());
  std::copy(sums.begin(), sums.end(), out);
}

template <class T>
void sum_rows(T* out, const T* in, int64_t rows, int64_t columns) {
  for (int64_t column = 0; column < columns; column += num_columns) {
    sum_columns(out + column, in + column, rows, columns);
  }
}

template <class T>
constexpr auto dtype_of = c10::CppTypeToScalarType<T>::value;

// Whether this machine's ATen sums as we do: it may have other vector registers. So many rows reach two levels of its cascade, and three.
template <class T>
bool sums_as_aten() {
  return prove({"sum of columns", dtype_of<T>}, [](TrialNumbers numbers) {
    const int64_t columns = whole_columns<T>, many_rows[] = {37, 300};
    return std::all_of(std::begin(many_rows), std::end(many_rows), [&](int64_t rows) {
      const auto in = numbers({rows, columns}, dtype_of<T>), out = at::empty({columns}, in.options());
      sum_rows(out.template mutable_data_ptr<T>(), in.template const_data_ptr<T>(), rows, columns);
      return have_same_bits(out, in.sum(0));
    });
  });
}

// ---- whole rows

// One row's sum. ATen sums four vectors of 32 bytes at a time, in a cascade as above, and adds what is left one by one.
template <class T>
T sum_of_row(const T* in, int64_t size) {
  constexpr int64_t lanes = 32 / sizeof(T), columns = 4 * lanes;
  const int64_t in_cascade = size / columns * columns, in_vectors = size / lanes * lanes;
  std::array<T, columns> sums{};
  if (in_cascade) {
    sum_rows(sums.data(), in, size / columns, columns);
  }
  for (int64_t i = in_cascade; i < in_vectors; ++i) {
    sums[i % lanes] += in[i];
  }
  for (int64_t i = lanes; i < columns; ++i) {
    sums[i % lanes] += sums[i];
  }
  T sum = 0;
  for (int64_t i = in_vectors; i < size; ++i) {
    sum += in[i];
  }
  for (int64_t lane = 0; lane < lanes; ++lane) {
    sum += sums[lane];
  }
  return sum;
}

// Whether `agree` holds for rows of several lengths.
template <class T, class Agree>
bool prove_for_rows(const char* kernel, Agree agree) {
  return prove({kernel, dtype_of<T>}, [agree](TrialNumbers numbers) {
    const int64_t sizes[] = {9, 32, 45, 719, 1031, 20000};
    return std::all_of(std::begin(sizes), std::end(sizes), [&](int64_t size) { return agree(numbers({size}, dtype_of<T>), size); });
  });
}

// Whether they are ATen's sum and mean of so many.
template <class T>
bool are_sum_and_mean(T sum, int64_t size, const at::Tensor& sum_of_aten, const at::Tensor& mean_of_aten) {
  return have_same_bits(at::full_like(sum_of_aten, sum), sum_of_aten) &&
      have_same_bits(at::full_like(mean_of_aten, sum / static_cast<T>(size)), mean_of_aten);
}

// Whether this machine's ATen sums rows as we do.
template <class T>
bool sums_rows_as_aten() {
  return prove_for_rows<T>("sum of a row", [](const at::Tensor& row, int64_t size) {
    return are_sum_and_mean(sum_of_row(row.const_data_ptr<T>(), size), size, row.sum(), row.mean());
  });
}

template <class T, bool is_mean>
void call_sum_of_row(const Step& step, void* out, const void* const* inputs) {
  const T sum = sum_of_row(static_cast<const T*>(inputs[0]), step.summed.columns);
  *static_cast<T*>(out) = is_mean ? sum / static_cast<T>(step.summed.columns) : sum;
}

template <class T>
Direct row_sum_of(bool is_mean) {
  if (!sums_rows_as_aten<T>()) {
    return nullptr;
  }
  return is_mean ? &call_sum_of_row<T, true> : &call_sum_of_row<T, false>;
}

bool is_one_row(const Meta& in) {
  const int64_t size = c10::multiply_integers(in.sizes);
  return is_contiguous(in) && size >= 32 / static_cast<int64_t>(c10::elementSize(in.dtype)) && size < most_elements;
}

// The sum or mean of all elements, which lie as one row.
Direct find_full_sum(const Plan& plan, Step& step, bool is_mean) {
  const Meta& in = *plan.metas[step.operands[0].index];
  if (!is_one_row(in) || !plan.is_constant(step.operands[1], &c10::IValue::isNone)) {
    return nullptr;
  }
  step.summed = {1, c10::multiply_integers(in.sizes)};
  return of_dtype(in.dtype, [&](auto zero) { return row_sum_of<decltype(zero)>(is_mean); });
}

// ---- mse_loss: the mean or sum of the squares of all differences

template <class T>
GRADC_WIDE void square_differences(T* out, const T* a, const T* b, int64_t size) {
  for (int64_t i = 0; i < size; ++i) {
    const T difference = a[i] - b[i];
    out[i] = difference * difference;
  }
}

template <class T>
T sum_of_squares(const T* a, const T* b, int64_t size) {
  thread_local std::vector<T> squares;
  squares.resize(std::max<size_t>(squares.size(), size));
  square_differences(squares.data(), a, b, size);
  return sum_of_row(squares.data(), size);
}

// Whether this machine's ATen does as we do.
template <class T>
bool squares_as_aten() {
  return prove_for_rows<T>("mse_loss", [](const at::Tensor& row, int64_t size) {
    const auto other = row.cos();
    const T sum = sum_of_squares(row.const_data_ptr<T>(), other.const_data_ptr<T>(), size);
    return are_sum_and_mean(sum, size, at::mse_loss(row, other, at::Reduction::Sum), at::mse_loss(row, other));
  });
}

template <class T, bool is_mean>
void call_mse(const Step& step, void* out, const void* const* inputs) {
  const T sum = sum_of_squares(static_cast<const T*>(inputs[0]), static_cast<const T*>(inputs[1]), step.summed.columns);
  *static_cast<T*>(out) = is_mean ? sum / static_cast<T>(step.summed.columns) : sum;
}

template <class T>
Direct mse_of(bool is_mean) {
  if (!squares_as_aten<T>()) {
    return nullptr;
  }
  return is_mean ? &call_mse<T, true> : &call_mse<T, false>;
}

bool is_one_number(const Meta& in) {
  return is_contiguous(in) && c10::multiply_integers(in.sizes) == 1;
}

Direct find_mse(const Plan& plan, Step& step) {
  const Meta &a = *meta_at(plan, step.operands[0]), *b = meta_at(plan, step.operands[1]);
  const auto reduction = number_at(plan, step.operands[2]);
  const bool is_mean = reduction == at::Reduction::Mean;
  if (!b || b->sizes != a.sizes || b->dtype != a.dtype || !is_contiguous(*b) || !(is_one_row(a) || is_one_number(a)) ||
      !(is_mean || reduction == at::Reduction::Sum)) {
    return nullptr;
  }
  step.summed = {1, c10::multiply_integers(a.sizes)};
  return of_dtype(a.dtype, [&](auto zero) { return mse_of<decltype(zero)>(is_mean); });
}

// ---- mse_loss_backward, of such a loss

template <class T>
GRADC_WIDE void scale_differences(T* out, const T* a, const T* b, T scale, T grad, int64_t size) {
  for (int64_t i = 0; i < size; ++i) {
    out[i] = scale * (a[i] - b[i]) * grad;
  }
}

template <class T>
T scale_of(bool is_mean, int64_t size) {
  return static_cast<T>(is_mean ? 2.0 / static_cast<double>(size) : 2.0);
}

// Whether this machine's ATen does as we do.
template <class T>
bool scales_as_aten() {
  return prove_for_rows<T>("mse_loss_backward", [](const at::Tensor& row, int64_t size) {
    const auto other = row.cos(), out = at::empty_like(row), grad = at::full({}, T(0.3), row.options());
    scale_differences(
        out.mutable_data_ptr<T>(), row.const_data_ptr<T>(), other.const_data_ptr<T>(), scale_of<T>(true, size), T(0.3), size);
    return have_same_bits(out, at::mse_loss_backward(grad, row, other, at::Reduction::Mean));
  });
}

template <class T, bool is_mean>
void call_mse_backward(const Step& step, void* out, const void* const* inputs) {
  const auto at = [&](size_t position) { return static_cast<const T*>(inputs[position]); };
  const int64_t size = step.summed.columns;
  scale_differences(static_cast<T*>(out), at(1), at(2), scale_of<T>(is_mean, size), *at(0), size);
}

template <class T>
Direct mse_backward_of(bool is_mean) {
  if (!scales_as_aten<T>()) {
    return nullptr;
  }
  return is_mean ? &call_mse_backward<T, true> : &call_mse_backward<T, false>;
}

Direct find_mse_backward(const Plan& plan, Step& step) {
  const Meta &grad = *meta_at(plan, step.operands[0]), *a = meta_at(plan, step.operands[1]), *b = meta_at(plan, step.operands[2]);
  const Meta& result = *plan.metas[step.outs[0]];
  const auto reduction = number_at(plan, step.operands[3]);
  const bool is_mean = reduction == at::Reduction::Mean;
  const auto fits = [&](const Meta& meta) {
    return meta.sizes == result.sizes && meta.dtype == result.dtype && has_plain_strides(meta);
  };
  if (!a || !b || !grad.sizes.empty() || grad.dtype != result.dtype || !fits(*a) || !fits(*b) || !fits(result) ||
      num_bytes(result) == 0 || c10::multiply_integers(result.sizes) >= most_elements ||
      !(is_mean || reduction == at::Reduction::Sum)) {
    return nullptr;
  }
  step.summed = {1, c10::multiply_integers(result.sizes)};
  return of_dtype(result.dtype, [&](auto zero) { return mse_backward_of<decltype(zero)>(is_mean); });
}

// ---- columns

template <class T>
void call_sum(const Step& step, void* out, const void* const* inputs) {
  sum_rows(static_cast<T*>(out), static_cast<const T*>(inputs[0]), step.summed.rows, step.summed.columns);
}

template <class T>
Direct sum_of(int64_t columns) {
  return columns % whole_columns<T> == 0 && sums_as_aten<T>() ? &call_sum<T> : nullptr;
}

bool is_over_rows(const Plan& plan, const Operand& dimensions) {
  return dimensions.kind == Operand::Kind::constant && plan.constants[dimensions.index].ints == std::vector<int64_t>{0};
}

// The sums of the columns of a matrix. One column is summed as a row.
Direct find_column_sum(const Plan& plan, Step& step) {
  const Meta& in = *plan.metas[step.operands[0].index];
  if (in.sizes.size() == 2 && in.sizes[1] == 1 && is_one_row(in) && is_over_rows(plan, step.operands[1]) &&
      plan.is_constant(step.operands[3], &c10::IValue::isNone)) {
    step.summed = {1, in.sizes[0]};
    return of_dtype(in.dtype, [&](auto zero) { return row_sum_of<decltype(zero)>(/*is_mean=*/false); });
  }
  const bool is_matrix = in.sizes.size() == 2 && in.sizes[0] > 1 && in.sizes[1] > 1 && is_contiguous(in) &&
      in.sizes[0] * in.sizes[1] <= most_elements;
  if (!is_matrix || !is_over_rows(plan, step.operands[1]) || !plan.is_constant(step.operands[3], &c10::IValue::isNone)) {
    return nullptr;
  }
  step.summed = {in.sizes[0], in.sizes[1]};
  return of_dtype(in.dtype, [&](auto zero) { return sum_of<decltype(zero)>(in.sizes[1]); });
}

} // namespace

Kernel find_sum_kernel(const Plan& plan, Step& step, const std::string& op) {
  const bool is_full = op == "aten::sum" || op == "aten::mean", is_mse = op == "aten::mse_loss";
  const bool is_mse_backward = op == "aten::mse_loss_backward";
  if ((!is_full && !is_mse && !is_mse_backward && op != "aten::sum.dim_IntList") || step.outs[0] < 0 || !plan.metas[step.outs[0]] ||
      !meta_at(plan, step.operands[0])) {
    return nullptr;
  }
  if (is_mse) {
    return call_directly(step, find_mse(plan, step), {0, 1});
  }
  if (is_mse_backward) {
    return call_directly(step, find_mse_backward(plan, step), {0, 1, 2});
  }
  return call_directly(step, is_full ? find_full_sum(plan, step, op == "aten::mean") : find_column_sum(plan, step), {0});
}

} // namespace gradc
