// What a run of a walked graph tells whoever records it.
#pragma once

#include "walk/csrc/walk.h"

#include <vector>

namespace gradc {

// The state of the engine just after a node ran: which nodes did since the snapshot before, and what waits. Values are tensors,
// or slots.
template <typename Value>
struct Waiting {
  uint32_t node;
  std::vector<Value> inputs;
};
template <typename Value>
struct Snapshot {
  std::vector<uint32_t> newly_done;
  std::vector<Waiting<Value>> not_ready;
  std::vector<Waiting<Value>> ready; // in heap order
  std::vector<Value> results;
  std::vector<Value> views; // of what waits; of slots alone
};

// What went through a boundary, of each value whether nobody else held it, and of each input whether a hook has kept it: empty
// in a trace.
struct Traffic {
  const variable_list& inputs;
  const variable_list& outputs;
  std::vector<bool> are_inputs_stealable;
  std::vector<bool> are_inputs_kept;
  std::vector<bool> are_outputs_stealable;
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
  // A boundary is about to run.
  virtual void pause() = 0;
  virtual void boundary(uint32_t node, const Traffic& traffic) = 0;
  // What is recorded of a value that a boundary returned or took is right where as many hold it as now.
  virtual void depends_on_holders(const at::Tensor& value) = 0;
  virtual void snapshot(Snapshot<at::Tensor> state) = 0;
  virtual void accumulated(uint32_t node, const at::Tensor& grad) = 0;
};

} // namespace gradc
