#include "executor/cpu/csrc/sums.h"

#include "executor/core/csrc/prove.h"
#include "executor/cpu/csrc/cascade.h"
#include "executor/cpu/csrc/direct.h"
#include "executor/cpu/csrc/loops.h"
#include "executor/cpu/csrc/memory.h"
#include "executor/cpu/csrc/numbers.h"

#include <ATen/ATen.h>
#include <ATen/core/Reduction.h>

#include <algorithm>
#include <array>
#include <initializer_list>
#include <optional>
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
void call_sum_of_row(const Payload& payload, void* out, const void* const* inputs) {
  const int64_t size = payload_as<Summed>(payload).columns;
  const T sum = sum_of_row(static_cast<const T*>(inputs[0]), size);
  *static_cast<T*>(out) = is_mean ? sum / static_cast<T>(size) : sum;
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

// The sum of so many numbers that lie as one row.
Exact call_on_row(const Step& step, Direct direct, int64_t size, std::initializer_list<size_t> positions) {
  return call_directly(step, direct, Summed{1, size}, slots_at(step, positions));
}

// The sum or mean of all elements, which lie as one row.
template <bool is_mean>
Exact find_full_sum(const Plan& plan, const Step& step) {
  const Meta* in = meta_at(plan, step.operands[0]);
  if (!in || !result_meta(plan, step) || !is_one_row(*in) || !plan.is_constant(step.operands[1], &c10::IValue::isNone)) {
    return {};
  }
  const Direct direct = of_dtype(in->dtype, [&](auto zero) { return row_sum_of<decltype(zero)>(is_mean); });
  return call_on_row(step, direct, c10::multiply_integers(in->sizes), {0});
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
void call_mse(const Payload& payload, void* out, const void* const* inputs) {
  const int64_t size = payload_as<Summed>(payload).columns;
  const T sum = sum_of_squares(static_cast<const T*>(inputs[0]), static_cast<const T*>(inputs[1]), size);
  *static_cast<T*>(out) = is_mean ? sum / static_cast<T>(size) : sum;
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

// Whether the reduction is to a mean; nothing where there is none.
std::optional<bool> is_mean_at(const Plan& plan, const Operand& operand) {
  const auto reduction = number_at(plan, operand);
  const bool is_mean = reduction == at::Reduction::Mean;
  return is_mean || reduction == at::Reduction::Sum ? std::optional(is_mean) : std::nullopt;
}

Exact find_mse(const Plan& plan, const Step& step) {
  const Meta *a = meta_at(plan, step.operands[0]), *b = meta_at(plan, step.operands[1]);
  const auto is_mean = is_mean_at(plan, step.operands[2]);
  if (!result_meta(plan, step) || !a || !b || b->sizes != a->sizes || b->dtype != a->dtype || !is_contiguous(*b) ||
      !(is_one_row(*a) || is_one_number(*a)) || !is_mean) {
    return {};
  }
  const Direct direct = of_dtype(a->dtype, [&](auto zero) { return mse_of<decltype(zero)>(*is_mean); });
  return call_on_row(step, direct, c10::multiply_integers(a->sizes), {0, 1});
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
void call_mse_backward(const Payload& payload, void* out, const void* const* inputs) {
  const auto at = [&](size_t position) { return static_cast<const T*>(inputs[position]); };
  const int64_t size = payload_as<Summed>(payload).columns;
  scale_differences(static_cast<T*>(out), at(1), at(2), scale_of<T>(is_mean, size), *at(0), size);
}

template <class T>
Direct mse_backward_of(bool is_mean) {
  if (!scales_as_aten<T>()) {
    return nullptr;
  }
  return is_mean ? &call_mse_backward<T, true> : &call_mse_backward<T, false>;
}

Exact find_mse_backward(const Plan& plan, const Step& step) {
  const auto at = [&](size_t position) { return meta_at(plan, step.operands[position]); };
  const Meta *grad = at(0), *a = at(1), *b = at(2), *result = result_meta(plan, step);
  const auto is_mean = is_mean_at(plan, step.operands[3]);
  const auto fits = [&](const Meta* meta) {
    return meta && meta->sizes == result->sizes && meta->dtype == result->dtype && has_plain_strides(*meta);
  };
  if (!result || !grad || !grad->sizes.empty() || grad->dtype != result->dtype || !fits(a) || !fits(b) || !fits(result) ||
      num_bytes(*result) == 0 || c10::multiply_integers(result->sizes) >= most_elements || !is_mean) {
    return {};
  }
  const Direct direct = of_dtype(result->dtype, [&](auto zero) { return mse_backward_of<decltype(zero)>(*is_mean); });
  return call_on_row(step, direct, c10::multiply_integers(result->sizes), {0, 1, 2});
}

// ---- columns

template <class T>
void call_sum(const Payload& payload, void* out, const void* const* inputs) {
  const auto& summed = payload_as<Summed>(payload);
  sum_rows(static_cast<T*>(out), static_cast<const T*>(inputs[0]), summed.rows, summed.columns);
}

template <class T>
Direct sum_of(int64_t columns) {
  return columns % whole_columns<T> == 0 && sums_as_aten<T>() ? &call_sum<T> : nullptr;
}

bool is_over_rows(const Plan& plan, const Operand& dimensions) {
  return dimensions.kind == Operand::Kind::constant && plan.constants[dimensions.index].ints == std::vector<int64_t>{0};
}

// The sums of the columns of a matrix. One column is summed as a row.
Exact find_column_sum(const Plan& plan, const Step& step) {
  const Meta* in = meta_at(plan, step.operands[0]);
  if (!in || !result_meta(plan, step) || in->sizes.size() != 2 || !is_over_rows(plan, step.operands[1]) ||
      !plan.is_constant(step.operands[3], &c10::IValue::isNone)) {
    return {};
  }
  const int64_t rows = in->sizes[0], columns = in->sizes[1];
  if (columns == 1 && is_one_row(*in)) {
    return call_on_row(step, of_dtype(in->dtype, [](auto zero) { return row_sum_of<decltype(zero)>(/*is_mean=*/false); }), rows, {0});
  }
  if (rows <= 1 || columns <= 1 || !is_contiguous(*in) || rows * columns > most_elements) {
    return {};
  }
  const Direct direct = of_dtype(in->dtype, [&](auto zero) { return sum_of<decltype(zero)>(columns); });
  return call_directly(step, direct, Summed{rows, columns}, slots_at(step, {0}));
}

} // namespace

std::vector<KernelRow> sum_kernels() {
  return {
      {{"aten::sum"}, &find_full_sum<false>},
      {{"aten::mean"}, &find_full_sum<true>},
      {{"aten::sum.dim_IntList"}, &find_column_sum},
      {{"aten::mse_loss"}, &find_mse},
      {{"aten::mse_loss_backward"}, &find_mse_backward},
  };
}

} // namespace gradc
