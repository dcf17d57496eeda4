#include "executor/csrc/limit.h"

#include "csrc/timing.h"
#include "executor/core/csrc/below_autograd.h"
#include "executor/core/csrc/kernels.h"
#include "executor/cpu/csrc/direct.h"
#include "executor/cpu/csrc/memory.h"

#include <algorithm>
#include <utility>

namespace gradc {

Limit::Limit(std::shared_ptr<const Plan> plan, std::vector<c10::IValue> inputs)
    : plan_(std::move(plan)), inputs_(std::move(inputs)), frame_(*plan_) {
  const BelowAutograd below;
  const NoAutocast autocast = no_autocast();
  fill(frame_, inputs_);
  TORCH_CHECK(frame_.is_exact && !plan_->is_dispatched, "gradc: a limit is that of a plan on inputs laid out as captured");
  for (const Step& step : plan_->steps) {
    if (step.views.empty()) {
      call(step);
    } else {
      call_step(step, frame_, true);
    }
  }
  held_ = frame_.slots;
}

// Its result may lie where one of its operands lay, which then is gone.
void Limit::call(const Step& step) {
  Call call{&step};
  const bool is_direct = step.exact.direct && frame_.is_exact && (is_in_place(step) || step.outs[0] >= 0);
  for (size_t i = 0; is_direct && i < step.exact.inputs.size(); ++i) {
    call.inputs[i] = frame_.slots[step.exact.inputs[i]].toTensor().const_data_ptr();
  }
  for (size_t i = 0; !is_direct && i < step.reads.size(); ++i) {
    call.reads.emplace_back(step.reads[i], frame_.slots[step.reads[i]]);
  }
  call_step(step, frame_, true);
  if (is_direct) {
    const Index result = is_in_place(step) ? step.exact.inputs[0] : step.outs[0];
    call.out = frame_.slots[result].toTensor().mutable_data_ptr();
    ++num_direct_;
  }
  calls_.push_back(std::move(call));
}

std::vector<std::string> Limit::others() const {
  std::vector<std::string> names;
  for (const Call& call : calls_) {
    if (!call.out) {
      names.push_back(c10::toString(call.step->op.operator_name()));
    }
  }
  return names;
}

LimitTimes Limit::time(int64_t repeats) {
  std::vector<double> kernels, replay;
  for (int64_t i = 0; i < repeats; ++i) {
    kernels.push_back(seconds_of([this] { run_kernels(); }));
    auto inputs = inputs_;
    replay.push_back(seconds_of([&] {
      for (c10::IValue& result : run_steps(*plan_, std::move(inputs))) {
        retire(result); // as whoever takes it does, when a step is over
      }
    }));
  }
  return {median(std::move(kernels)), median(std::move(replay))};
}

std::vector<LimitCall> Limit::each(int64_t repeats) {
  const BelowAutograd below;
  const NoAutocast autocast = no_autocast();
  std::vector<LimitCall> found;
  for (const Call& call : calls_) {
    std::vector<double> times;
    run(call);
    for (int64_t i = 0; i < repeats; ++i) {
      times.push_back(seconds_of([&] { run(call); }));
    }
    found.push_back({described(*call.step), call.out != nullptr, median(std::move(times))});
  }
  return found;
}

// The op, and the sizes of the tensors that it reads, with strides where they do not lie one row behind the other, and makes.
std::string Limit::described(const Step& step) const {
  std::string text = c10::toString(step.op.operator_name());
  const auto add = [&](Index slot, const char* before) {
    if (slot >= 0 && plan_->metas[slot]) {
      const Meta& meta = *plan_->metas[slot];
      text += c10::str(before, c10::IntArrayRef(meta.sizes));
      text += has_plain_strides(meta) ? "" : c10::str(" by ", c10::IntArrayRef(meta.strides));
    }
  };
  std::for_each(step.reads.begin(), step.reads.end(), [&](Index slot) { add(slot, " "); });
  std::for_each(step.outs.begin(), step.outs.end(), [&](Index slot) { add(slot, " -> "); });
  return text;
}

void Limit::run(const Call& call) {
  if (call.out) {
    return call.step->exact.direct(call.step->exact.payload, call.out, call.inputs.data());
  }
  for (const auto& [slot, value] : call.reads) {
    frame_.slots[slot] = value;
  }
  call_step(*call.step, frame_, true);
}

void Limit::run_kernels() {
  const BelowAutograd below;
  const NoAutocast autocast = no_autocast();
  std::for_each(calls_.begin(), calls_.end(), [this](const Call& call) { run(call); });
}

} // namespace gradc
