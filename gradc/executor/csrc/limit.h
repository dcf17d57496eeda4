// The floor of a plan: what its kernels take by themselves, back to back, with nothing between them.
//
// For measuring only (`gradc bench limit`). The plan's steps are called once, and what they make is kept. Calls that go straight to
// memory are then only that: a function and addresses. Others are made as the plan makes them, with their tensors. Views are nothing.
#pragma once

#include "executor/cpu/csrc/direct.h"

#include <array>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace gradc {

// Medians, in seconds. `replay` is a run of the plan, its results and their end included.
struct LimitTimes {
  double kernels = 0;
  double replay = 0;
};

// A call by itself, in seconds. Its inputs are in the nearest cache.
struct LimitCall {
  std::string what;
  bool is_direct = false;
  double seconds = 0;
};

class Limit {
 public:
  // Throws for inputs that are not laid out as those that the plan was made for.
  Limit(std::shared_ptr<const Plan> plan, std::vector<c10::IValue> inputs);

  // Runs both `repeats` times, in turn.
  LimitTimes time(int64_t repeats);
  // Each call by itself, in the plan's order: the median of so many times, one behind the other.
  std::vector<LimitCall> each(int64_t repeats);

  size_t num_direct() const {
    return num_direct_;
  }
  // The ops of the calls that are with tensors.
  std::vector<std::string> others() const;

 private:
  struct Call {
    const Step* step = nullptr;
    void* out = nullptr; // null for a call with tensors
    std::array<const void*, most_direct_inputs> inputs{};
    std::vector<std::pair<Index, c10::IValue>> reads; // of a call with tensors
  };

  void call(const Step& step);
  void run(const Call& call);
  void run_kernels();
  std::string described(const Step& step) const;

  std::shared_ptr<const Plan> plan_;
  std::vector<c10::IValue> inputs_;
  Frame frame_;
  std::vector<c10::IValue> held_; // what addresses point to
  std::vector<Call> calls_;
  size_t num_direct_ = 0;
};

} // namespace gradc
