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

} // namespace gradc
