#include "executor/cpu/csrc/small_log_softmax.h"

#include "executor/core/csrc/prove.h"
#include "executor/cpu/csrc/direct.h"
#include "executor/cpu/csrc/loops.h"
#include "executor/cpu/csrc/memory.h"
#include "executor/cpu/csrc/numbers.h"
#include "executor/cpu/csrc/vector_functions.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <optional>

namespace gradc {
namespace {

constexpr int64_t most_numbers = 32768; // beyond, ATen may use several threads

// ---- the calls

// The largest, or NaN where there is one.
float largest(const float* row, int64_t size) {
  float found = row[0];
  for (int64_t i = 1; i < size; ++i) {
    found = row[i] > found || std::isnan(row[i]) ? row[i] : found;
  }
  return found;
}

float sum(const float* row, int64_t size) {
  float total = row[0];
  for (int64_t i = 1; i < size; ++i) {
    total += row[i];
  }
  return total;
}

void log_softmax(const Classes& of, const float* in, float* out) {
  const int64_t rows = of.rows, columns = of.columns, size = rows * columns;
  float* const exponentials = room_for(size + most_lanes + rows); // the sums lie behind them
  float* const sums = exponentials + size + most_lanes;
  for (int64_t row = 0; row < rows; ++row) {
    const float most = largest(in + row * columns, columns);
    for (int64_t i = row * columns; i < (row + 1) * columns; ++i) {
      exponentials[i] = out[i] = in[i] - most;
    }
  }
  vector_functions().exp(exponentials, size);
  for (int64_t row = 0; row < rows; ++row) {
    sums[row] = sum(exponentials + row * columns, columns);
  }
  vector_functions().log(sums, rows);
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t i = row * columns; i < (row + 1) * columns; ++i) {
      out[i] -= sums[row];
    }
  }
}

GRADC_WIDE void log_softmax_backward(const Classes& of, const float* grad, const float* result, float* out, bool is_fused) {
  const int64_t rows = of.rows, columns = of.columns, size = rows * columns;
  float* const exponentials = room_for(size);
  std::copy_n(result, size, exponentials);
  vector_functions().exp(exponentials, size);
  for (int64_t row = 0; row < rows; ++row) {
    const float total = sum(grad + row * columns, columns);
    for (int64_t i = row * columns; i < (row + 1) * columns; ++i) {
      out[i] = log_softmax_grad(is_fused, grad[i], exponentials[i], total);
    }
  }
}

void call_log_softmax(const Payload& payload, void* out, const void* const* inputs) {
  log_softmax(payload_as<Classes>(payload), static_cast<const float*>(inputs[0]), static_cast<float*>(out));
}

template <bool is_fused>
void call_backward(const Payload& payload, void* out, const void* const* inputs) {
  const auto at = [inputs](size_t position) { return static_cast<const float*>(inputs[position]); };
  log_softmax_backward(payload_as<Classes>(payload), at(0), at(1), static_cast<float*>(out), is_fused);
}

// ---- what ATen does

// So many rows that other functions, or another order, would show; close together and far apart.
template <class TrialOfRows>
bool prove_for_classes(const char* kernel, int64_t columns, TrialOfRows trial) {
  const Classes of{2 * most_lanes * most_lanes + 1, columns};
  return prove({kernel, c10::ScalarType::Float, {columns}}, [&](TrialNumbers numbers) {
    const auto agrees_at = [&](double scale) { return trial(of, numbers({of.rows, of.columns}).mul_(scale)); };
    return agrees_at(0.01) && agrees_at(5) && agrees_at(50);
  });
}

Direct log_softmax_of(int64_t columns) {
  const bool is_atens = prove_for_classes("log_softmax", columns, [](const Classes& of, const at::Tensor& in) {
    const auto ours = at::empty_like(in);
    log_softmax(of, in.const_data_ptr<float>(), ours.mutable_data_ptr<float>());
    return have_same_bits(ours, at::_log_softmax(in, 1, false));
  });
  return is_atens ? &call_log_softmax : nullptr;
}

bool is_backward_atens(int64_t columns, bool is_fused) {
  const char* kernel = is_fused ? "log_softmax_backward, fused" : "log_softmax_backward";
  return prove_for_classes(kernel, columns, [is_fused](const Classes& of, const at::Tensor& grad) {
    const auto result = at::_log_softmax(grad.cos(), 1, false), ours = at::empty_like(grad);
    log_softmax_backward(
        of, grad.const_data_ptr<float>(), result.const_data_ptr<float>(), ours.mutable_data_ptr<float>(), is_fused);
    return have_same_bits(ours, at::_log_softmax_backward_data(grad, result, 1, at::kFloat));
  });
}

Direct backward_of(int64_t columns) {
  return is_backward_atens(columns, true) ? &call_backward<true>
      : is_backward_atens(columns, false) ? &call_backward<false>
                                          : nullptr;
}

bool is_plain_float(const Meta* meta) {
  return is_plain_of(meta, c10::ScalarType::Float) && !meta->sizes.empty();
}

// The rows that a step on `in` and `result` goes over along `dimension`; nothing where there are too many, or they are too long.
std::optional<Classes> classes_of(const Meta* in, const Meta* result, const Meta* made, std::optional<int64_t> dimension) {
  const bool are_plain = is_plain_float(in) && is_plain_float(result) && is_plain_float(made);
  if (vector_functions().lanes == 0 || !are_plain || in->sizes != result->sizes || !dimension) {
    return {};
  }
  const int64_t columns = in->sizes.back(), size = c10::multiply_integers(in->sizes);
  const auto last = static_cast<int64_t>(in->sizes.size()) - 1;
  const bool is_over_last = *dimension == last || *dimension == -1;
  if (!is_over_last || columns < 2 || columns >= vector_functions().lanes || size > most_numbers) {
    return {};
  }
  return Classes{size / columns, columns};
}

Exact find_log_softmax(const Plan& plan, const Step& step) {
  const Meta* in = meta_at(plan, step.operands[0]);
  const auto classes = classes_of(in, in, result_meta(plan, step), int_at(plan, step.operands[1]));
  return classes ? call_directly(step, log_softmax_of(classes->columns), *classes, slots_at(step, {0})) : Exact();
}

Exact find_log_softmax_backward(const Plan& plan, const Step& step) {
  const Meta *in = meta_at(plan, step.operands[0]), *result = meta_at(plan, step.operands[1]);
  const auto classes = classes_of(in, result, result_meta(plan, step), int_at(plan, step.operands[2]));
  return classes ? call_directly(step, backward_of(classes->columns), *classes, slots_at(step, {0, 1})) : Exact();
}

} // namespace

std::vector<KernelRow> few_classes_kernels() {
  return {{{"aten::_log_softmax"}, &find_log_softmax}, {{"aten::_log_softmax_backward_data"}, &find_log_softmax_backward}};
}

} // namespace gradc
