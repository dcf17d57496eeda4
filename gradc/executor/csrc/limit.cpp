#include "executor/csrc/limit.h"

#include "csrc/timing.h"
#include "executor/csrc/below_autograd.h"
#include "executor/csrc/direct.h"
#include "executor/csrc/kernels.h"

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
  const bool is_direct = step.direct && frame_.is_exact && (is_in_place(step) || step.outs[0] >= 0);
  for (size_t i = 0; is_direct && i < step.direct_inputs.size(); ++i) {
    call.inputs[i] = frame_.slots[step.direct_inputs[i]].toTensor().const_data_ptr();
  }
  for (size_t i = 0; !is_direct && i < step.reads.size(); ++i) {
    call.reads.emplace_back(step.reads[i], frame_.slots[step.reads[i]]);
  }
  call_step(step, frame_, true);
  if (is_direct) {
    const Index result = is_in_place(step) ? step.direct_inputs[0] : step.outs[0];
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
    replay.push_back(seconds_of([&] { run_steps(*plan_, std::move(inputs)); }));
  }
  return {median(std::move(kernels)), median(std::move(replay))};
}

void Limit::run_kernels() {
  const BelowAutograd below;
  const NoAutocast autocast = no_autocast();
  for (const Call& call : calls_) {
    if (call.out) {
      call.step->direct(*call.step, call.out, call.inputs.data());
    } else {
      for (const auto& [slot, value] : call.reads) {
        frame_.slots[slot] = value;
      }
      call_step(*call.step, frame_, true);
    }
  }
}

} // namespace gradc
