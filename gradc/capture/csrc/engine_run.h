// Running a walked graph: node by node in the engine's order (while recording, or where a replay gave up), or by replay.
//
// Layout.     LiveRun     the engine's own algorithm over a Walk; tells an Observer of everything that a recording needs
//             Recording   what a capture left: pieces (Programs) between boundaries (nodes that run live)
//             StandIns    fake tensors and symbolic sizes that a LiveRun takes in place of the walked ones: a trace
//             Replay      one run of a Recording over a new Walk with the same key
//
//             piece 0 -> boundary 0 -> piece 1 -> boundary 1 -> ... -> last piece
//
// Boundaries. A boundary runs a live node with its own hooks. What it returns must look as it did when recorded, and must
//             have left gradients, hooks and saved tensors of the rest alone; otherwise LiveRun goes on from the snapshot.
// The GIL.    Not held, but by an Observer and where a hook takes it.
#pragma once

#include "executor/csrc/plan.h"
#include "walk/csrc/walk.h"

#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <unordered_map>
#include <unordered_set>

namespace gradc {

// The state of the engine just after a node ran: which nodes did, and what waits. Values are tensors, or slots.
template <typename Value>
struct Waiting {
  uint32_t node;
  std::vector<Value> inputs;
};
template <typename Value>
struct Snapshot {
  std::vector<uint32_t> done;
  std::vector<Waiting<Value>> not_ready;
  std::vector<Waiting<Value>> ready; // in heap order
  std::vector<Value> results;
};

// What a capture needs to know. Called with the GIL released.
class Observer {
 public:
  virtual ~Observer() = default;
  virtual void begin() = 0;
  virtual void end() = 0;
  virtual void enter(uint32_t node, const variable_list& inputs) = 0;
  // True if the node must run live on a hit, though it was recorded.
  virtual bool leave(uint32_t node, const variable_list& outputs) = 0;
  // `is_owned`: of each input, whether only the node holds it; empty in a trace.
  virtual void boundary(
      uint32_t node, const variable_list& inputs, const variable_list& outputs, const std::vector<bool>& is_owned) = 0;
  virtual void snapshot(Snapshot<at::Tensor> state) = 0;
  virtual void accumulated(uint32_t node, const at::Tensor& grad) = 0;
};

// What a trace uses in place of what was walked: tensors in the order of Walk::tensors, numbers in that of Walk::numbers,
// and what each node that cannot be traced returns.
struct StandIns {
  variable_list tensors;
  std::vector<c10::SymInt> numbers;
  std::unordered_map<uint32_t, variable_list> boundaries;
};

class LiveRun {
 public:
  explicit LiveRun(Walk& walk, Observer* observer = nullptr, const StandIns* stand_ins = nullptr);
  variable_list run();
  // The results as eager gives them: a boundary's outputs, where it returned one tensor several times, are one.
  variable_list as_returned(variable_list results) const;
  variable_list resume(const Snapshot<at::Tensor>& state, uint32_t node, variable_list outputs);

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
  variable_list call(uint32_t node, variable_list inputs);
  variable_list call_live(uint32_t node, variable_list inputs);
  variable_list trace(uint32_t node, variable_list inputs);
  void trace_accumulate_grad(uint32_t node, variable_list inputs);
  std::vector<std::optional<torch::autograd::InputMetadata>> traced_metadata(const edge_list& edges) const;
  void accumulate_grad(uint32_t node, variable_list inputs);
  void send(uint32_t from, variable_list outputs);
  void receive(const Edge& edge, at::Tensor value);
  void add(variable_list& buffer, size_t position, at::Tensor value);
  void push(uint32_t node, variable_list inputs);
  bool is_free(const at::Tensor& tensor) const;
  std::vector<bool> owned_among(const variable_list& inputs) const;
  bool is_held_elsewhere(const at::Tensor& tensor, bool by_storage) const;
  const void* original_of(const at::Tensor& tensor) const;
  bool is_walked(const at::Tensor& tensor) const;
  size_t num_waiting(const at::Tensor& tensor, bool by_storage) const;
  bool may_add_in_place(const at::Tensor& tensor, const at::Tensor& other) const;
  bool keeps_strides(const at::Tensor& tensor, const at::Tensor& other) const;
  void mark_external(const variable_list& tensors);
  void mark_live(const variable_list& tensors);
  Snapshot<at::Tensor> snapshot() const;

  Walk& walk_;
  Observer* observer_;
  const StandIns* stand_ins_;
  const variable_list& tensors_; // the walked ones, or those that stand for them
  std::vector<int> dependencies_;
  std::vector<std::optional<variable_list>> not_ready_;
  std::vector<Task> ready_; // a heap
  std::vector<uint32_t> done_;
  variable_list results_;
  const variable_list* in_flight_ = nullptr; // outputs on their way to their edges
  std::unordered_set<const void*> external_storages_;
  std::unordered_set<const void*> held_values_; // of those, what somebody kept when a boundary returned or took it
  std::unordered_map<const void*, at::Tensor> returned_; // handle given to the rest -> what a boundary returned
  std::unordered_set<const void*> owned_values_; // what nobody kept: eager adds to it in place
  std::unordered_map<const void*, const void*> twins_; // handles of what a boundary returned several times -> the first of them
  std::unordered_set<const void*> live_values_; // made by boundaries or given to them: only a run knows who holds them
};

// Runs one node as the engine does, hooks included, and validates what it returns. `is_owned`: of each input, whether nobody
// else is taken to hold it; empty: as it is.
variable_list run_node(Node& node, variable_list inputs, bool keep_graph, std::vector<bool> is_owned = {});

// Runs `function` as the body of a backward pass of torch's engine: with a graph task, final callbacks and its errors.
variable_list inside_engine(Walk& walk, const std::function<variable_list()>& function);

// Runs a generated node's own formula on stand-ins for what it saved: on fake tensors, with symbolic sizes.
variable_list apply_to(Walk& walk, uint32_t node, const StandIns& stand_ins, const variable_list& inputs);

// coefficient * the product of some symbols: what a recording says of a number.
struct Term {
  int64_t coefficient = 0;
  std::vector<uint32_t> symbols;
  int64_t at(const Numbers& values) const {
    int64_t value = coefficient;
    for (const auto symbol : symbols) {
      value *= values[symbol];
    }
    return value;
  }
};

struct Piece {
  std::shared_ptr<Plan> plan;
  std::function<std::vector<c10::IValue>(std::vector<c10::IValue>)> runner; // where there is no plan
  std::vector<Index> inputs;
  std::vector<uint32_t> symbols; // whose values follow the inputs
  std::vector<Index> dying; // slots that nothing reads later
  std::vector<Index> outputs;
  std::vector<uint32_t> nodes;
  std::vector<std::pair<uint32_t, Index>> grads; // leaf's node -> slot of its new .grad
  std::vector<uint32_t> leaves; // every leaf's node of the piece, for the check that its .grad is as walked
};

struct Boundary {
  uint32_t node = 0;
  std::vector<Index> inputs; // -1: undefined
  std::vector<bool> is_owned; // of each input, whether in eager it is the only tensor on its memory and held once
  std::vector<Index> dying;
  std::vector<Index> outputs;
  std::vector<Bytes> metadata;
  std::vector<std::vector<Term>> numbers;
  Snapshot<Index> snapshot;
};

struct Recording {
  Bytes key;
  Numbers numbers;
  std::vector<Term> terms; // what the numbers must be, where the recording has symbols; otherwise empty
  std::vector<size_t> symbols; // where in the numbers each symbol's value stands
  std::set<Numbers> proven; // the values of symbols for which the recording is known to hold
  std::vector<uint32_t> order;
  std::vector<bool> ties;
  std::vector<int64_t> offsets; // of the inputs, where a call depends on them; otherwise empty
  size_t num_slots = 0;
  std::vector<Index> inputs; // slot of each walked tensor
  std::vector<Piece> pieces; // one more than boundaries
  std::vector<Boundary> boundaries;
  std::vector<Index> results;
  bool is_live = false; // nothing could be recorded: run by torch's engine
};

// Whether `recording` replays `walk`. `is_proven` false: it would, if the values of its symbols were proven.
bool fits(const Walk& walk, const Recording& recording, bool is_proven = true);
Numbers symbol_values(const Walk& walk, const Recording& recording);

// Replays `recording` over `walk`. `gave_up` is set if LiveRun had to finish.
variable_list replay(Walk& walk, const Recording& recording, bool& gave_up);

} // namespace gradc
