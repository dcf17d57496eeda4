#include "executor/cpu/csrc/cross_entropy_backward.h"

#include "executor/core/csrc/kernels.h"
#include "executor/core/csrc/prove.h"
#include "executor/cpu/csrc/direct.h"
#include "executor/cpu/csrc/loops.h"
#include "executor/cpu/csrc/memory.h"
#include "executor/cpu/csrc/numbers.h"
#include "executor/cpu/csrc/slice_backward.h"
#include "executor/cpu/csrc/small_log_softmax.h"
#include "executor/cpu/csrc/vector_functions.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/core/Reduction.h>
#include <c10/core/WrapDimMinimal.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>

namespace gradc {
namespace {

constexpr int64_t fewest_numbers = 32768; // below, the calls are short
constexpr int64_t part_size = 1024; // numbers whose exponentials are taken at a time

// ---- running

// Where nothing comes in.
template <bool is_fused>
GRADC_WIDE void put_part(float* out, const float* exponentials, float total, int64_t size) {
  for (int64_t i = 0; i < size; ++i) {
    out[i] = log_softmax_grad(is_fused, 0.0F, exponentials[i], total);
  }
}

void put_row(const CrossEntropy& of, float* out, const float* logs, int64_t target, float grad) {
  const bool is_counted = target != of.ignored && target >= 0 && target < of.columns;
  const float given = is_counted ? -grad : 0.0F, total = 0.0F + given;
  for (int64_t begin = 0; begin < of.columns; begin += part_size) {
    const int64_t size = std::min(part_size, of.columns - begin);
    float* const exponentials = room_for(part_size);
    std::copy_n(logs + begin, size, exponentials);
    vector_functions().exp(exponentials, size);
    (of.is_fused ? &put_part<true> : &put_part<false>)(out + begin, exponentials, total, size);
    if (is_counted && target >= begin && target < begin + size) {
      out[target] = log_softmax_grad(of.is_fused, given, exponentials[target - begin], total);
    }
  }
}

// The inputs: the gradient of the loss, the logarithms, the targets, and by what a mean is divided.
void call_backward_of_rows(const Payload& payload, void* out, const void* const* inputs) {
  const auto& of = payload_as<CrossEntropy>(payload);
  const auto* logs = static_cast<const float*>(inputs[1]);
  const auto* targets = static_cast<const int64_t*>(inputs[2]);
  const float given = *static_cast<const float*>(inputs[0]);
  const float grad = of.is_mean ? given / *static_cast<const float*>(inputs[3]) : given;
  const int64_t rows_at_once = std::max<int64_t>(fewest_numbers / of.columns, 1);
  at::parallel_for(0, of.num_parts * of.part, rows_at_once, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      float* const to = static_cast<float*>(out) + row * of.columns;
      const int64_t place = row % of.part - of.start, from = row / of.part * of.length + place;
      if (place >= 0 && place < of.length) {
        put_row(of, to, logs + from * of.columns, targets[from], grad);
      } else {
        std::memset(to, 0, of.columns * sizeof(float));
      }
    }
  });
}

// ---- what ATen does

bool is_atens(int64_t columns, bool is_fused) {
  const char* kernel = is_fused ? "cross entropy's backward, fused" : "cross entropy's backward";
  return prove({kernel, c10::ScalarType::Float, {columns}}, [&](TrialNumbers numbers) {
    CrossEntropy of;
    of.length = 5, of.part = 7, of.start = 1, of.columns = columns, of.ignored = 2, of.is_fused = is_fused;
    const auto targets = at::tensor({int64_t{0}, columns - 1, int64_t{2}, columns / 2, int64_t{1}}, at::kLong);
    const auto agrees = [&](const at::Tensor& logs, const at::Tensor& grad, const at::Tensor& total, bool is_mean) {
      of.is_mean = is_mean;
      const auto ours = at::empty({of.part, columns}, logs.options());
      const void* const inputs[] = {grad.const_data_ptr(), logs.const_data_ptr(), targets.const_data_ptr(), total.const_data_ptr()};
      call_backward_of_rows(of, ours.mutable_data_ptr(), inputs);
      const auto of_logs = at::nll_loss_backward(grad, logs, targets, {}, is_mean ? at::Reduction::Mean : at::Reduction::Sum, 2, total);
      const auto of_scores = at::_log_softmax_backward_data(of_logs, logs, 1, at::kFloat);
      return have_same_bits(ours, at::slice_backward(of_scores, {of.part, columns}, 0, of.start, of.start + of.length, 1));
    };
    const auto scores = numbers({of.length, columns}), grads = numbers({4}), totals = numbers({4});
    bool is_it = agrees(scores, grads[0], totals[0], true);
    for (int i = 1; i < 4 && is_it; ++i) {
      is_it = agrees(at::_log_softmax(scores * std::pow(8.0, i - 1), 1, false), grads[i], totals[i], i > 1);
    }
    return is_it;
  });
}

// ---- finding

// The steps that follow each other from `begin` on, each of which alone reads what the one before it makes.
class Steps {
 public:
  Steps(const Known& known, Index begin) : known_(known), end_(begin) {}

  // The next one, if it is `op`; else null.
  const Step* next(const char* op) {
    const auto& steps = known_.plan.steps;
    if (end_ >= static_cast<Index>(steps.size()) || name_of(steps[end_]) != op || steps[end_].device != c10::DeviceType::CPU ||
        steps[end_].outs.size() != 1 || !steps[end_].writes.empty()) {
      return nullptr;
    }
    const Operand& first = steps[end_].operands[0];
    const auto reads_last = [&] { return first.kind == Operand::Kind::slot && first.index == last_->outs[0]; };
    if (last_ && (known_.last_read[last_->outs[0]] != end_ || !reads_last())) {
      return nullptr;
    }
    last_ = &steps[end_++];
    return last_;
  }

  Index end() const {
    return end_;
  }

 private:
  const Known& known_;
  Index end_;
  const Step* last_ = nullptr;
};

// Where the slice's rows lie, if they are whole rows side by side in each of its parts.
bool read_slice(const Plan& plan, const Step& step, CrossEntropy& of) {
  const Meta *result = result_meta(plan, step), *gradient = meta_at(plan, step.operands[0]);
  const auto given = int_at(plan, step.operands[2]), apart = int_at(plan, step.operands[5]);
  if (!is_plain_of(result, c10::ScalarType::Float) || !is_plain_of(gradient, c10::ScalarType::Float) || !given || apart != 1) {
    return false;
  }
  const auto num_dimensions = static_cast<int64_t>(result->sizes.size());
  const auto dimension = c10::maybe_wrap_dim(*given, num_dimensions);
  if (num_dimensions < 2 || dimension != num_dimensions - 2 || result->sizes.back() != of.columns) {
    return false;
  }
  const auto start = start_at(plan, step.operands[3], result->sizes[dimension]);
  if (!start) {
    return false;
  }
  of.part = result->sizes[dimension];
  of.length = gradient->sizes[dimension];
  of.start = *start;
  of.num_parts = c10::multiply_integers(result->sizes) / of.columns / of.part;
  return true;
}

std::optional<CrossEntropy> read_loss(const Plan& plan, const Step& nll, const Step& log_softmax) {
  const Meta *grad = meta_at(plan, nll.operands[0]), *logs = meta_at(plan, log_softmax.operands[1]);
  const Meta *targets = meta_at(plan, nll.operands[2]), *total = meta_at(plan, nll.operands[6]);
  const auto reduction = int_at(plan, nll.operands[4]), ignored = int_at(plan, nll.operands[5]);
  const auto dimension = int_at(plan, log_softmax.operands[2]);
  const bool are_plain = is_plain_of(grad, c10::ScalarType::Float) && is_plain_of(logs, c10::ScalarType::Float) &&
      is_plain_of(targets, c10::ScalarType::Long) && is_plain_of(total, c10::ScalarType::Float) && grad->sizes.empty() && logs->sizes.size() == 2;
  if (!are_plain || !reduction || *reduction == at::Reduction::None || !ignored || (dimension != 1 && dimension != -1) ||
      !plan.is_constant(nll.operands[3], &c10::IValue::isNone) || targets->sizes != std::vector<int64_t>{logs->sizes[0]}) {
    return {};
  }
  CrossEntropy of;
  of.columns = logs->sizes[1];
  of.length = of.part = logs->sizes[0];
  of.ignored = *ignored;
  of.is_mean = *reduction == at::Reduction::Mean;
  return of;
}

} // namespace

std::shared_ptr<const Stretch> find_cross_entropy_backward(const Known& known, Index begin) {
  const Plan& plan = known.plan;
  Steps steps(known, begin);
  const Step* nll = steps.next("aten::nll_loss_backward");
  const Step* log_softmax = nll ? steps.next("aten::_log_softmax_backward_data") : nullptr;
  auto of = log_softmax && vector_functions().lanes > 0 ? read_loss(plan, *nll, *log_softmax) : std::nullopt;
  if (!of || !is_plain_of(result_meta(plan, *log_softmax), c10::ScalarType::Float) || of->columns < 2 * most_lanes ||
      of->length * of->columns < fewest_numbers) {
    return nullptr;
  }
  Index end = steps.end();
  const Step* viewed = steps.next("aten::view");
  if (const Step* slice = viewed ? steps.next("aten::slice_backward") : nullptr; slice && read_slice(plan, *slice, *of)) {
    end = steps.end();
  }
  of->is_fused = is_atens(of->columns, true);
  if (!of->is_fused && !is_atens(of->columns, false)) {
    return nullptr;
  }
  Exact merged;
  merged.direct = &call_backward_of_rows;
  merged.payload = *of;
  for (const Operand* read : {&nll->operands[0], &log_softmax->operands[1], &nll->operands[2], &nll->operands[6]}) {
    merged.inputs.push_back(read->index);
  }
  const auto& read = merged.inputs;
  const bool is_written_over = std::find(read.begin(), read.end(), plan.steps[end - 1].reuse) != read.end();
  return is_written_over ? nullptr : as_one_call(plan, begin, end, std::move(merged));
}

} // namespace gradc
