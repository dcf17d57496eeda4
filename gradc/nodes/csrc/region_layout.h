// What is the same in every call of a compiled region: its programs, and for each segment which tensors its node in the autograd
// graph takes, leads to and saves. Python lays it out (region_spec.cpp reads it); immutable, but for the caches of
// backwards, and for what was joined.
#pragma once

#include "nodes/csrc/backward_cache.h"

#include <c10/core/TensorOptions.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace gradc {

// One input of a segment's node. `value` is the position of the tensor it is the gradient of, or -1 where only the
// metadata counts; a dimension of `shape` that is symbolic is -1 - (number of the bound shape value).
struct EntryLayout {
  int64_t value = -1;
  at::TensorOptions options;
  std::vector<int64_t> shape;
};

// One next edge: to a primal, or to an entry of an earlier segment.
struct ExitLayout {
  int64_t primal = -1;
  int64_t segment = -1;
  int64_t entry = -1;
};

// One saved tensor: a primal, or a value; `owner` is the segment whose node made it, or -1. One that `is_kept` the user's code
// keeps by itself: no hook sees it, nothing checks its version, and backward does not free it. `spoilt` is the error for reading
// what was written into after it was saved: such a tensor has no position. Empty for any other. `entry` is the input of this node
// where gradients of the tensor come in, of a value that is for this node alone; -1 for any other. `is_transposed`: not the primal, but
// its transpose, which is for this node alone as well.
struct SavedLayout {
  bool is_primal = false;
  int64_t position = 0;
  int64_t owner = -1;
  bool is_kept = false;
  std::string spoilt;
  int64_t entry = -1;
  bool is_transposed = false;
};

// A saved tensor that an op in place has made of a view, whose own node is a later segment's: gradients of it go there as long as
// that node lives, then to the op itself: to an entry of another segment, -1 where the later node outlives every pass.
struct LaterViewLayout {
  size_t position = 0;
  size_t segment = 0;
  uint32_t entry = 0;
  int64_t segment_once_gone = -1;
  uint32_t entry_once_gone = 0;
};

// Entries from `num_tangents` on are those of saved values: only a backward of the backward sends gradients there, and
// only then does the node show them as inputs, so that until then its hooks see as many gradients as eager's do.
struct SegmentLayout {
  std::vector<EntryLayout> entries;
  size_t num_tangents = 0;
  std::vector<ExitLayout> exits;
  std::vector<std::vector<size_t>> shared; // exits that lead to the same primal, where there are several
  std::vector<std::vector<size_t>> targets; // exits that lead to the same edge; empty if detours are in the way
  std::vector<SavedLayout> saved;
  std::vector<LaterViewLayout> later;
  bool has_hidden_saves = false;
  bool has_spoilt = false;
  bool may_expand = false; // on another device than the CPU, where backward runs in the device's thread: see expand.h
  uint64_t offset = 0; // of eager's last node: how many nodes eager has made in the call before it
  uint64_t span = 0; // how many before that eager has made the first one

  // Null where the position is none of such a view.
  const LaterViewLayout* later_at(size_t position) const {
    const auto is_there = [position](const LaterViewLayout& view) { return view.position == position; };
    const auto found = std::find_if(later.begin(), later.end(), is_there);
    return found == later.end() ? nullptr : &*found;
  }
  // Whether the history of what is saved there is the node of this segment, whose number is given.
  bool is_output(size_t position, size_t number) const {
    const auto* view = later_at(position);
    const auto owner = view ? view->segment_once_gone : saved[position].is_primal ? -1 : saved[position].owner;
    return owner == static_cast<int64_t>(number);
  }
};

struct RegionLayout;

// What a segment is expanded into, see expand.h: segments of `region`, which is the same region with one for each node. `numbers`: which
// they are. `entries`: which of them, and which of its entries, stands for each entry of the segment.
struct Expansion {
  // Of each next edge, the one of the segment that it stands for, or -1 where it leads to a part; of each saved tensor, its position in
  // the segment. `before_last`: how many nodes before the segment's last eager has made it.
  struct Part {
    size_t number = 0;
    uint64_t before_last = 0;
    std::vector<int64_t> exits;
    std::vector<size_t> saved;
  };
  std::shared_ptr<const RegionLayout> region;
  std::vector<int64_t> shapes;
  std::vector<Part> parts; // in the order in which eager makes them
  std::vector<std::pair<size_t, size_t>> entries;

  size_t index_of(size_t number) const {
    const auto found = std::find_if(parts.begin(), parts.end(), [number](const Part& part) { return part.number == number; });
    return static_cast<size_t>(found - parts.begin());
  }
};

// What Python does for a segment (python_derive.cpp): compile for a key, or compute the gradients itself.
class Derive {
 public:
  virtual ~Derive() = default;
  // nullptr where no Program can be made: `grads` then serves every call with that key. `owned` are positions of tangents.
  virtual std::shared_ptr<const CompiledBackward> compile(
      size_t segment,
      const torch::autograd::variable_list& tangents,
      const std::vector<bool>& needed,
      bool adds_up,
      const std::vector<int64_t>& owned) = 0;
  // Where a node raises, `let_go` are the positions of what those own that had run by then.
  virtual torch::autograd::variable_list grads(
      size_t segment,
      const std::vector<int64_t>& symbols,
      const torch::autograd::variable_list& saved,
      const torch::autograd::variable_list& tangents,
      const std::vector<bool>& needed,
      bool is_repacked,
      const std::vector<int64_t>& owned,
      std::vector<int64_t>& let_go) = 0;
  // The region's forward and the backward that `compile` gives, as one plan: see Joined. nullptr where they stay apart.
  virtual std::shared_ptr<Plan> join(
      size_t segment,
      const torch::autograd::variable_list& tangents,
      const std::vector<bool>& needed,
      bool adds_up) = 0;
  // What is freed with a backward, as CompiledBackward has it: `released` and `frees_hidden`.
  virtual std::pair<std::vector<int64_t>, bool> released(
      size_t segment, const torch::autograd::variable_list& tangents, const std::vector<bool>& needed) = 0;
  // `grads` without create_graph, of a node whose saved tensors hooks packed: `unpack` gives the one at a position.
  virtual torch::autograd::variable_list grads_in_turn(
      size_t segment,
      const std::vector<int64_t>& symbols,
      const std::function<at::Tensor(size_t)>& unpack,
      const torch::autograd::variable_list& tangents,
      const std::vector<bool>& needed,
      const std::vector<int64_t>& owned) = 0;
  // The gradients under create_graph, by what Python made for `key`; nullopt where it made nothing: `grads` then serves.
  virtual std::optional<torch::autograd::variable_list> differentiate(
      size_t segment,
      Key key,
      const std::vector<int64_t>& symbols,
      const torch::autograd::variable_list& saved,
      const torch::autograd::variable_list& tangents,
      const std::vector<bool>& needed) = 0;
  // nullopt where the segment stays as it is.
  virtual std::optional<Expansion> expand(size_t segment, const std::vector<int64_t>& symbols) = 0;
  // The gradc.backward.cache.BackwardCache behind it: a borrowed PyObject*.
  virtual void* backwards() const = 0;
};

// A primal that a direct call makes of another: the copy of a weight in autocast's dtype, or an alias.
struct MadeLayout {
  size_t primal = 0;
  std::optional<c10::ScalarType> dtype;
};

// One of the nodes that a call makes, in eager's order: that of a primal that is made, a segment, or a node above a segment's
// in the history of an output. See gradc.analysis.order.live_order.
struct MadeNode {
  enum class Kind { primal, segment, output };

  Kind kind = Kind::primal;
  size_t number = 0;
  size_t depth = 0;
  uint64_t offset = 0; // how many nodes eager has made in the call before it
};

// A forward and a backward in one plan, for joint calls (joint_call.h): from the primals and the loss's gradient to what the region
// returns, then what `backward` gives.
struct Joined {
  std::shared_ptr<Plan> plan;
  std::shared_ptr<const CompiledBackward> backward;
};

// Of a region, guarded by the GIL. `is_settled`: there is one, or there will be none.
struct Joining {
  size_t num_calls = 0; // joint ones, before it was settled
  bool is_settled = false;
  std::shared_ptr<const Joined> joined;
};

struct RegionLayout {
  std::string name; // for profiles
  std::shared_ptr<Plan> forward;
  std::vector<SegmentLayout> segments;
  std::vector<SymbolSource> symbols; // of the primals
  std::vector<MadeLayout> made;
  std::vector<MadeNode> live_order; // empty if calls make the nodes in this order
  std::optional<bool> is_nested; // whether an autocast context must be open, if that makes a difference
  uint64_t num_nodes = 0; // that eager makes in a call, where the numbers of nodes are to be eager's; else 0
  uint64_t num_nodes_elsewhere = 0; // that the thread of the device makes in a call, besides
  bool is_split_at_leaves = false; // cut wherever a gradient leaves, so that hooks on leaves run between the cuts
  std::optional<Ambient::Autocast> forced_autocast; // under which backward runs by the region's setting; nullopt: the ambient one
  std::unique_ptr<Derive> derive;
  mutable std::vector<BackwardCache> backwards;
  mutable Joining joining;
  mutable std::atomic<bool> was_expanded = false; // a segment of a call was: from then on eager makes the calls
};

} // namespace gradc
