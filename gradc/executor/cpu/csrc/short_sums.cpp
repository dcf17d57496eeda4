#include "executor/cpu/csrc/short_sums.h"

#include "executor/core/csrc/prove.h"
#include "executor/cpu/csrc/cascade.h"
#include "executor/cpu/csrc/direct.h"
#include "executor/cpu/csrc/lengths.h"
#include "executor/cpu/csrc/memory.h"
#include "executor/cpu/csrc/numbers.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <array>
#include <optional>
#include <type_traits>

namespace gradc {
namespace {

constexpr int64_t most_added = 32768; // beyond, ATen may use several threads
constexpr int num_trials = 8; // other orders of so few additions often give the same number
constexpr int num_cascades = 4; // that go side by side

template <class T>
constexpr int64_t lanes_of = 32 / sizeof(T); // of ATen's registers for sums

// One sum, of four that take its elements in turn.
template <class T>
T sum_one(const T* in, int64_t stride, int64_t size) {
  auto sums = sum_in_cascade<num_cascades>(in, size / num_cascades, num_cascades * stride, stride);
  for (int64_t i = size / num_cascades * num_cascades; i < size; ++i) {
    sums[0] += in[i * stride];
  }
  for (int k = 1; k < num_cascades; ++k) {
    sums[0] += sums[k];
  }
  return sums[0];
}

// A sum of less than four registers: lane by lane, then what is left over, then the lanes.
template <class T>
T sum_in_lanes(const T* in, int64_t size) {
  constexpr int64_t lanes = lanes_of<T>;
  std::array<T, lanes> sums{};
  int64_t i = 0;
  for (; i + lanes <= size; i += lanes) {
    for (int64_t lane = 0; lane < lanes; ++lane) {
      sums[lane] += in[i + lane];
    }
  }
  T sum = 0;
  for (; i < size; ++i) {
    sum += in[i];
  }
  for (const T of_lane : sums) {
    sum += of_lane;
  }
  return sum;
}

// One after the other: what the cascade does with so few.
template <class T>
void sum_each_few(T* out, const T* in, int64_t rows, int64_t columns) {
  with_length(columns, [&](auto size) {
    for (int64_t row = 0; row < rows; ++row, in += size) {
      T sum = 0;
      for (int64_t i = 0; i < size; ++i) {
        sum += in[i];
      }
      out[row] = sum;
    }
  });
}

template <class T>
void sum_each_row(T* out, const T* in, int64_t rows, int64_t columns) {
  if (columns < num_cascades) {
    return sum_each_few(out, in, rows, columns);
  }
  for (int64_t row = 0; row < rows; ++row, in += columns) {
    out[row] = columns < lanes_of<T> ? sum_one(in, 1, columns) : sum_in_lanes(in, columns);
  }
}

template <class T>
void sum_each_column(T* out, const T* in, int64_t rows, int64_t columns) {
  int64_t column = 0;
  for (; column + num_cascades <= columns; column += num_cascades) {
    const auto sums = sum_in_cascade<num_cascades>(in + column, rows, columns, std::integral_constant<int64_t, 1>());
    std::copy(sums.begin(), sums.end(), out + column);
  }
  for (; column < columns; ++column) {
    out[column] = sum_one(in + column, columns, rows);
  }
}

template <class T>
using SumEach = void (*)(T* out, const T* in, int64_t rows, int64_t columns);

template <class T, SumEach<T> sum>
void call_short_sum(const Payload& payload, void* out, const void* const* inputs) {
  const auto& summed = payload_as<Summed>(payload);
  sum(static_cast<T*>(out), static_cast<const T*>(inputs[0]), summed.rows, summed.columns);
}

// The call, if this machine's ATen sums such a matrix as we do.
template <class T, SumEach<T> sum>
Direct proven(const Summed& summed, bool is_over_rows) {
  constexpr auto dtype = c10::CppTypeToScalarType<T>::value;
  const bool is_atens = prove({"short sum", dtype, {summed.rows, summed.columns, is_over_rows}}, [&](TrialNumbers numbers) {
    for (int trial = 0; trial < num_trials; ++trial) {
      const auto in = numbers({summed.rows, summed.columns}, dtype);
      const auto of_aten = in.sum(is_over_rows ? 0 : 1), ours = at::empty_like(of_aten);
      sum(ours.template mutable_data_ptr<T>(), in.template const_data_ptr<T>(), summed.rows, summed.columns);
      if (!have_same_bits(ours, of_aten)) {
        return false;
      }
    }
    return true;
  });
  return is_atens ? &call_short_sum<T, sum> : nullptr;
}

template <class T>
Direct short_sum_of(const Summed& summed, bool is_over_rows) {
  return is_over_rows ? proven<T, &sum_each_column<T>>(summed, true) : proven<T, &sum_each_row<T>>(summed, false);
}

// The one dimension that is summed over; nothing where there are several.
std::optional<int64_t> dimension_at(const Plan& plan, const Operand& operand, int64_t num_dimensions) {
  if (operand.kind != Operand::Kind::constant || plan.constants[operand.index].ints.size() != 1) {
    return {};
  }
  const int64_t dimension = plan.constants[operand.index].ints[0];
  return dimension < 0 ? dimension + num_dimensions : dimension;
}

Exact find_short_sum(const Plan& plan, const Step& step) {
  const Meta *in = meta_at(plan, step.operands[0]), *result = result_meta(plan, step);
  if (!in || !result || in->sizes.size() < 2 || !is_contiguous(*in) || num_bytes(*in) == 0 ||
      !plan.is_constant(step.operands[3], &c10::IValue::isNone)) {
    return {};
  }
  const auto num_dimensions = static_cast<int64_t>(in->sizes.size());
  const auto dimension = dimension_at(plan, step.operands[1], num_dimensions);
  const int64_t size = c10::multiply_integers(in->sizes), last = in->sizes.back();
  const int64_t lanes = 32 / static_cast<int64_t>(c10::elementSize(in->dtype));
  const bool is_over_rows = num_dimensions == 2 && dimension == 0;
  const int64_t most_columns = is_over_rows ? lanes : 4 * lanes;
  if (size > most_added || last < 2 || last >= most_columns || !has_plain_strides(*result) ||
      !(is_over_rows || dimension == num_dimensions - 1)) {
    return {};
  }
  const Summed summed{size / last, last};
  switch (in->dtype) {
    case c10::ScalarType::Float:
      return call_directly(step, short_sum_of<float>(summed, is_over_rows), summed, slots_at(step, {0}));
    case c10::ScalarType::Double:
      return call_directly(step, short_sum_of<double>(summed, is_over_rows), summed, slots_at(step, {0}));
    default:
      return {};
  }
}

} // namespace

std::vector<KernelRow> short_sum_kernels() {
  return {{{"aten::sum.dim_IntList"}, &find_short_sum}};
}

} // namespace gradc
