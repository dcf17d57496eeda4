// Which way each run of a plan goes: by its steps, or by code that is compiled while it already runs; and the measuring of both.
//
//     counting --(called often: asks for code)--> waiting --(code is offered)--> trying --(both timed)--> settled
//
// Threads.    Runs and an offer may come from any thread. What was offered stays until the end, so that a run may go on with it.
// The GIL.    Not needed, but by the functions that ask and tell, which take it themselves; no lock is held meanwhile.
#pragma once

#include "executor/core/csrc/candidate.h"

#include <array>
#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace gradc {

// What is told of a candidate: the seconds of a run, by the steps and by its code, and whether that is to run from now on; or that
// it raised.
struct Judge {
  std::function<bool(double, double)> choose;
  std::function<void(const std::string&)> failed;
};

class Choice : public std::enable_shared_from_this<Choice> {
 public:
  using Inputs = std::vector<c10::IValue>;
  using Ask = std::function<void(const std::shared_ptr<Choice>&, const Inputs&)>;

  // `ask` is called once, at the `num_calls`-th run. A trial takes `num_tried` runs of each.
  Choice(int64_t num_calls, size_t num_tried, Ask ask) : num_calls_(num_calls), num_tried_(num_tried), ask_(std::move(ask)) {}

  void offer(std::shared_ptr<const Candidate> candidate, Judge judge);
  std::vector<c10::IValue> run(const Plan& plan, Inputs inputs, Inputs* left);

 private:
  enum class State : uint8_t { counting, by_steps, trying, by_candidate };
  enum Arm : uint8_t { steps, code };

  void count(const Inputs& inputs);
  bool is_usable(const Inputs& inputs) const;
  std::vector<c10::IValue> try_once(const Plan& plan, Inputs inputs, Inputs* left);
  std::vector<c10::IValue> run_code(const Plan& plan, Inputs inputs, Inputs* left);
  void note(Arm arm, double seconds);
  void fail(const std::string& what);

  const int64_t num_calls_;
  const size_t num_tried_;
  Ask ask_;
  std::atomic<State> state_ = State::counting;
  std::atomic<int64_t> calls_ = 0;
  std::atomic<uint64_t> turn_ = 0;
  std::shared_ptr<const Candidate> candidate_; // set once, before `state_` says so
  Judge judge_;
  std::mutex mutex_;
  std::array<std::vector<double>, 2> seconds_;
};

} // namespace gradc
