// Runs a walked graph node by node in the order of torch's engine: while recording, or where a replay gave up.
//
// Layout.     EngineRun   the engine's own algorithm over a Walk; tells an Observer of everything that a recording needs
//             StandIns    fake tensors and symbolic sizes that an EngineRun takes in place of the walked ones: a trace
//
// Boundaries. A node that a recording cannot stand for runs as it is, with its own hooks, then and on every replay.
// The GIL.    Not held, but by an Observer and where a hook takes it.
#pragma once

#include "capture/csrc/holders.h"
#include "capture/csrc/observer.h"
#include "walk/csrc/walk.h"

#include <map>
#include <optional>
#include <unordered_map>
#include <vector>

namespace gradc {

// What a trace uses in place of what was walked: tensors in the order of Walk::tensors, numbers in that of Walk::numbers,
// and what each node that cannot be traced returns.
struct StandIns {
  struct Returned {
    variable_list outputs;
    std::vector<bool> are_stealable; // as Holders::stealable_among_returned said of the live ones
  };
  variable_list tensors;
  std::vector<c10::SymInt> numbers;
  std::unordered_map<uint32_t, Returned> boundaries;
};

class EngineRun {
 public:
  explicit EngineRun(Walk& walk, Observer* observer = nullptr, const StandIns* stand_ins = nullptr);
  variable_list run();
  // The results as eager gives them: a boundary's outputs, where it returned one tensor several times, are one.
  variable_list as_returned(variable_list results) const {
    return holders_.as_returned(std::move(results));
  }
  // Goes on from `state` after `node`; `done` are all nodes that ran before.
  variable_list resume(
      const std::vector<uint32_t>& done, Snapshot<at::Tensor> state, uint32_t node, variable_list outputs);

 private:
  struct Task {
    uint64_t sequence_nr;
    uint32_t node;
    variable_list inputs;
    bool operator<(const Task& other) const {
      return sequence_nr < other.sequence_nr;
    }
  };

  void start();
  variable_list loop();
  void evaluate(uint32_t node, variable_list inputs);
  void keep_results(uint32_t node, const variable_list& values);
  variable_list call(uint32_t node, variable_list inputs);
  variable_list ask_hooks(uint32_t node, variable_list inputs);
  variable_list call_boundary(uint32_t node, variable_list inputs);
  // What the node gives, and what of it was given a hook has kept.
  std::pair<variable_list, std::vector<bool>> call_on_returned(
      uint32_t node, const variable_list& held, std::vector<bool> are_stealable);
  variable_list run_and_release(uint32_t node, variable_list inputs, std::vector<bool> are_stealable = {});
  variable_list trace(uint32_t node, variable_list inputs);
  void trace_accumulate_grad(uint32_t node, variable_list inputs);
  std::vector<std::optional<torch::autograd::InputMetadata>> traced_metadata(const edge_list& edges) const;
  void accumulate_grad(uint32_t node, variable_list inputs);
  void record_accumulation(uint32_t node, const variable_list& inputs, const at::Tensor& variable, at::Tensor& grad);
  void send(uint32_t from, variable_list outputs);
  void receive(const Edge& edge, at::Tensor value);
  void add(variable_list& buffer, size_t position, at::Tensor value);
  void push(uint32_t node, variable_list inputs);
  bool may_add_in_place(const at::Tensor& tensor, const at::Tensor& other) const;
  bool keeps_strides(const at::Tensor& tensor, const at::Tensor& other) const;
  std::vector<const variable_list*> waiting() const;
  Snapshot<at::Tensor> snapshot();

  Walk& walk_;
  Observer* observer_;
  const StandIns* stand_ins_;
  const variable_list& tensors_; // the walked ones, or those that stand for them
  Holders holders_;
  std::vector<int> dependencies_;
  std::map<uint32_t, variable_list> not_ready_; // what nodes got so far that wait for more
  std::vector<Task> ready_; // a heap
  std::vector<uint32_t> newly_done_; // since the last snapshot
  variable_list results_;
  const variable_list* in_flight_ = nullptr; // outputs on their way to their edges
};

// Runs a generated node's own formula on stand-ins for what it saved: on fake tensors, with symbolic sizes.
variable_list apply_to(Walk& walk, uint32_t node, const StandIns& stand_ins, const variable_list& inputs);

} // namespace gradc
