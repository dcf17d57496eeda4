// Segment nodes: what the live autograd graph holds for a compiled region.
//
// Layout.     RegionLayout   immutable, one per region       SegmentNode   one per segment and call
//             +------------------------------------+         +------------------------------------------+
//             | forward plan                       |  call   | next edges: one per exit                 |
//             | segments: entries, exits, saved    | ------> | inputs: one per entry                    |
//             | backwards: key -> plan (locked)    |         | saved: SavedVariables, freed when run    |
//             +------------------------------------+         +------------------------------------------+
//
// Ownership.  A node owns its saved tensors until a backward without retain_graph runs it. They are SavedVariables, so
//             version checks, ambient saved-tensors hooks and what unpacks under create_graph are torch's own; but for what
//             the user's code keeps by itself, which are plain tensors that live as long as the node. A node
//             holds its region's layout, never the region's Python object but through the layout's `derive`.
// The GIL.    Building nodes holds it (pack hooks are Python). A backward whose key is known never takes it; a miss, and
//             whatever only Python can do, does.
#pragma once

#include "executor/csrc/plan.h"

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/saved_variable.h>

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
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
// keeps by itself: no hook sees it, nothing checks its version, and backward does not free it.
struct SavedLayout {
  bool is_primal = false;
  int64_t position = 0;
  int64_t owner = -1;
  bool is_kept = false;
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
  bool has_hidden_saves = false;
};

// A compiled backward: the plan takes the defined tangents, the saved tensors at `saved`, and the symbols. `released` are
// the saved tensors that are freed with it; of those that it does not read, `unread`, eager checks the versions all the same.
// `views` are gradients that the engine must see as views: to any other it adds in place, in the memory that it lies in.
struct CompiledBackward {
  std::shared_ptr<Plan> plan;
  std::vector<int64_t> saved;
  std::vector<int64_t> released;
  bool frees_hidden = false;
  std::vector<int64_t> views;
  std::vector<int64_t> unread;
};

using Key = std::vector<int64_t>;

struct KeyHash {
  size_t operator()(const Key& key) const noexcept;
};

// What Python does for a segment (bind.cpp): compile for a key, or compute the gradients itself.
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
  virtual torch::autograd::variable_list grads(
      size_t segment,
      const std::vector<int64_t>& symbols,
      const torch::autograd::variable_list& saved,
      const torch::autograd::variable_list& tangents,
      const std::vector<bool>& needed,
      bool is_repacked,
      const std::vector<int64_t>& owned) = 0;
  // The gradients under create_graph, by what Python made for `key`; nullopt where it made nothing: `grads` then serves.
  virtual std::optional<torch::autograd::variable_list> differentiate(
      size_t segment,
      Key key,
      const std::vector<int64_t>& symbols,
      const torch::autograd::variable_list& saved,
      const torch::autograd::variable_list& tangents,
      const std::vector<bool>& needed) = 0;
  // The gradc.backward.cache.BackwardCache behind it: a borrowed PyObject*.
  virtual void* backwards() const = 0;
};

// The backwards of one segment by key. Bounded: sizes that keep changing push out what was there.
class BackwardCache {
 public:
  struct Found {
    bool is_known = false;
    std::shared_ptr<const CompiledBackward> backward;
  };
  Found find(const Key& key) const;
  void keep(Key key, std::shared_ptr<const CompiledBackward> backward);

 private:
  static constexpr size_t kept = 512;
  mutable std::mutex mutex_;
  std::unordered_map<Key, std::shared_ptr<const CompiledBackward>, KeyHash> known_;
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
};

struct RegionLayout {
  std::shared_ptr<Plan> forward;
  std::vector<SegmentLayout> segments;
  std::vector<SymbolSource> symbols; // `slot` is the position of a primal here
  std::vector<MadeLayout> made;
  std::vector<MadeNode> live_order; // empty if calls make the nodes in this order
  std::optional<bool> is_nested; // whether an autocast context must be open, if that makes a difference
  bool is_fine = false; // cut so finely that hooks on leaves run between the cuts
  Key forced_autocast; // the part of a key that the region's setting fixes; empty: what is ambient
  std::unique_ptr<Derive> derive;
  mutable std::vector<BackwardCache> backwards;
};

struct SegmentNode : torch::autograd::Node {
  SegmentNode(
      std::shared_ptr<const RegionLayout> region, size_t number, std::vector<int64_t> symbols, std::vector<int64_t> shapes)
      : region_(std::move(region)), number_(number), symbols_(std::move(symbols)), shapes_(std::move(shapes)) {}

  torch::autograd::variable_list apply(torch::autograd::variable_list&& tangents) override;
  void release_variables() override;
  std::vector<std::unique_ptr<torch::autograd::FunctionPreHook>>& tensor_pre_hooks() noexcept override;
  std::string name() const override {
    return "gradc::Segment";
  }
  void save(std::vector<torch::autograd::SavedVariable> saved, torch::autograd::variable_list kept, bool is_repacked);
  // Makes the entries up to `end` inputs of the node.
  void show_entries(size_t end);
  // Whether gradients may come in for saved values alone, past the outputs.
  bool is_entered_inside() const {
    return num_inputs() > layout().num_tangents;
  }
  const SegmentLayout& layout() const {
    return region_->segments[number_];
  }
  const RegionLayout& region() const {
    return *region_;
  }
  size_t number() const {
    return number_;
  }
  const std::vector<int64_t>& symbols() const {
    return symbols_;
  }

 private:
  bool is_usual(const torch::autograd::variable_list& tangents) const;
  bool may_add_up() const;
  std::vector<int64_t> written_over(const torch::autograd::variable_list& tangents) const;
  void take_sums(torch::autograd::variable_list& tangents, const std::vector<bool>& needed) const;
  torch::autograd::variable_list replay(
      const CompiledBackward& backward, torch::autograd::variable_list&& tangents);
  torch::autograd::variable_list derive(const torch::autograd::variable_list& tangents, const std::vector<bool>& needed);
  std::optional<torch::autograd::variable_list> differentiate(
      const torch::autograd::variable_list& saved,
      const torch::autograd::variable_list& tangents,
      const std::vector<bool>& needed);
  torch::autograd::variable_list gradients(torch::autograd::variable_list&& tangents, bool is_compilable);
  void pass_over_hooks_of_unreached_leaves(const torch::autograd::variable_list& grads) const;
  bool is_kept(size_t position) const;
  at::Tensor unpack(size_t position);
  void refuse_second_backward(const CompiledBackward& backward) const;
  void release(const CompiledBackward& backward);
  void release_all();

  std::shared_ptr<const RegionLayout> region_;
  size_t number_;
  std::vector<int64_t> symbols_;
  std::vector<int64_t> shapes_;
  std::vector<torch::autograd::SavedVariable> saved_;
  torch::autograd::variable_list kept_; // by the same positions, undefined for what is a SavedVariable; empty if nothing is kept
  bool is_repacked_ = false;
  std::vector<bool> is_released_;
  bool is_hidden_released_ = false;
};

// As long as it lives, this thread runs `segment` for a walk over the live graph, which holds each node that the segment leads to,
// once. `is_owned` tells of each tangent whether only the walk holds it; empty: as it is. Of the run and not of the node: another
// thread may run the same node at that time.
class WalkedRun {
 public:
  explicit WalkedRun(const SegmentNode* segment, std::vector<bool> is_owned = {});
  ~WalkedRun();
  WalkedRun(const WalkedRun&) = delete;
  WalkedRun& operator=(const WalkedRun&) = delete;
  // The run of `segment` that is under way in this thread; null if it is not one of a walk.
  static const WalkedRun* of(const SegmentNode& segment);
  const std::vector<bool>& is_owned() const {
    return is_owned_;
  }

 private:
  const SegmentNode* segment_;
  std::vector<bool> is_owned_;
  const WalkedRun* outer_;
};

// True if something runs when the gradient of one of the leaves arrives: a hook of the tensor's, or one on its
// AccumulateGrad, as DDP's reducer has.
bool has_gradient_hooks(const std::vector<c10::IValue>& primals);

// The copy of a weight that eager code under autocast to `dtype` would use, from autocast's cache: in another dtype, if it was
// first cast to that in the context that is open.
at::Tensor cached_cast(const at::Tensor& leaf, c10::ScalarType dtype);

// True if an autocast context is open in this thread, so that the cache lives on behind what is run now.
bool is_autocast_nested();

// True if ops must reach the dispatcher one by one, or a saved-tensors hook wants what is packed: Python then decides.
bool is_watched(const std::vector<c10::IValue>& primals);

using Nodes = std::vector<c10::intrusive_ptr<torch::autograd::Node>>;

// The forward plan's values, and the segments' nodes that they hang on.
struct Called {
  std::vector<c10::IValue> values;
  Nodes segments;
};

// Runs the forward and builds the nodes. `shapes` are the bound shape values of this call (static regions have none).
Called call_region(
    const std::shared_ptr<const RegionLayout>& region,
    const std::vector<c10::IValue>& primals,
    const std::vector<int64_t>& shapes);

// The nodes of the primals in the live order, null for the others. To be asked for before the forward runs: a view that it
// writes into has another node when it is next asked.
Nodes made_nodes(const RegionLayout& region, const std::vector<c10::IValue>& primals);

// Has the engine take what a call made for made in eager's order, by dealing out the sequence numbers anew. `made` is what
// `made_nodes` gave, `start` the sequence number of the first node that the call made.
void put_in_order(
    const RegionLayout& region,
    const Nodes& made,
    const Nodes& segments,
    const torch::autograd::variable_list& outputs,
    uint64_t start);

} // namespace gradc
