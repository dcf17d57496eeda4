#include "executor/core/csrc/choice.h"

#include "csrc/timing.h"
#include "executor/core/csrc/below_autograd.h"

#include <algorithm>

namespace gradc {
namespace {

constexpr size_t num_warm_up = 2; // runs of each that are not counted: the first ones find nothing in the caches

} // namespace

void Choice::offer(std::shared_ptr<const Candidate> candidate, Judge judge) {
  const std::lock_guard<std::mutex> lock(mutex_);
  TORCH_CHECK(!candidate_, "gradc: this plan has been offered code before");
  candidate_ = std::move(candidate);
  judge_ = std::move(judge);
  state_.store(State::trying, std::memory_order_release);
}

std::vector<c10::IValue> Choice::run(const Plan& plan, Inputs inputs, Inputs* left) {
  switch (state_.load(std::memory_order_acquire)) {
    case State::counting:
      count(inputs);
      break;
    case State::trying:
      if (is_usable(inputs)) {
        return try_once(plan, std::move(inputs), left);
      }
      break;
    case State::by_candidate:
      if (is_usable(inputs)) {
        return run_code(plan, std::move(inputs), left);
      }
      break;
    case State::by_steps:
      break;
  }
  return run_steps(plan, std::move(inputs), left);
}

void Choice::count(const Inputs& inputs) {
  if (calls_.fetch_add(1) + 1 != num_calls_) {
    return;
  }
  State counting = State::counting;
  if (state_.compare_exchange_strong(counting, State::by_steps)) {
    const Ask ask = std::move(ask_);
    ask(shared_from_this(), inputs);
  }
}

bool Choice::is_usable(const Inputs& inputs) const {
  return is_undispatched() && candidate_->takes(inputs);
}

// In the order steps, code, code, steps, ...: a machine that grows slower or faster does so to both.
std::vector<c10::IValue> Choice::try_once(const Plan& plan, Inputs inputs, Inputs* left) {
  const uint64_t turn = turn_.fetch_add(1) % 4;
  const Arm arm = turn == 0 || turn == 3 ? steps : code;
  const double start = thread_seconds(); // so that other processes do not disturb the trial
  auto outputs = arm == steps ? run_steps(plan, std::move(inputs), left) : run_code(plan, std::move(inputs), left);
  note(arm, thread_seconds() - start);
  return outputs;
}

std::vector<c10::IValue> Choice::run_code(const Plan& plan, Inputs inputs, Inputs* left) {
  const Inputs kept = candidate_->may_be_repeated() ? inputs : Inputs();
  try {
    const BelowAutograd below;
    const NoAutocast autocast = no_autocast();
    return candidate_->run(std::move(inputs));
  } catch (const std::exception& error) {
    fail(error.what());
    if (!candidate_->may_be_repeated()) {
      throw;
    }
  }
  return run_steps(plan, kept, left); // which raises what eager raises
}

void Choice::note(Arm arm, double seconds) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    seconds_[arm].push_back(seconds);
    const auto is_full = [&](const std::vector<double>& own) { return own.size() >= num_tried_ + num_warm_up; };
    if (state_ != State::trying || !std::all_of(seconds_.begin(), seconds_.end(), is_full)) {
      return;
    }
    state_ = State::by_steps; // until it is chosen, and so that nobody else chooses
  }
  for (auto& own : seconds_) {
    own.erase(own.begin(), own.begin() + num_warm_up);
  }
  if (judge_.choose(median(seconds_[steps]), median(seconds_[code]))) {
    state_ = State::by_candidate;
  }
}

void Choice::fail(const std::string& what) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (state_ == State::by_steps) {
      return;
    }
    state_ = State::by_steps;
  }
  judge_.failed(what);
}

} // namespace gradc
