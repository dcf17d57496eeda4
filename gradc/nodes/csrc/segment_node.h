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
//             the user's code keeps by itself, plain tensors that live as long as the node; for values that only the
//             node knows of: nobody can write into them, so they are plain tensors, too; and for transposes of primals. A node
//             holds its region's layout, never the region's Python object but through the layout's `derive`.
// The GIL.    Building nodes holds it (pack hooks are Python). A backward whose key is known never takes it; a miss, and
//             whatever only Python can do, does.
#pragma once

#include "nodes/csrc/packing.h"
#include "nodes/csrc/region_layout.h"
#include "nodes/csrc/saved_transpose.h"

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/saved_variable.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace gradc {

struct SegmentNode : torch::autograd::Node {
  SegmentNode(
      std::shared_ptr<const RegionLayout> region, size_t number, std::vector<int64_t> symbols, std::vector<int64_t> shapes)
      : region_(std::move(region)), number_(number), symbols_(std::move(symbols)), shapes_(std::move(shapes)) {}
  // With the sequence number that eager's node has, which is not counted here.
  SegmentNode(
      std::shared_ptr<const RegionLayout> region, size_t number, std::vector<int64_t> symbols, std::vector<int64_t> shapes,
      uint64_t sequence_number)
      : Node(sequence_number), region_(std::move(region)), number_(number), symbols_(std::move(symbols)), shapes_(std::move(shapes)) {}

  torch::autograd::variable_list apply(torch::autograd::variable_list&& tangents) override;
  void release_variables() override;
  std::vector<std::unique_ptr<torch::autograd::FunctionPreHook>>& tensor_pre_hooks() noexcept override;
  std::string name() const override {
    return "gradc::Segment";
  }
  // By the same positions, each of which one of them has.
  struct SavedTensors {
    std::vector<torch::autograd::SavedVariable> variables;
    torch::autograd::variable_list kept; // what the user's code keeps
    torch::autograd::variable_list own; // what nobody else has
    std::vector<SavedTranspose> transposes; // these three are empty, or have all positions
    std::vector<PackedLayout> packed; // what a checkpoint dropped; empty, or for all positions
    std::vector<c10::weak_intrusive_ptr<Node>> later; // as in the layout: the nodes of views, once those are there
  };
  void save(SavedTensors saved, PackedBy packed_by);
  // Tells of the nodes of later segments, which lead to this one: it may not hold them.
  void know_later_views(const std::vector<c10::intrusive_ptr<Node>>& nodes);
  // Makes the entries up to `end` inputs of the node.
  void show_entries(size_t end);
  // Whether gradients may come in for saved values alone, past the outputs.
  bool is_entered_inside() const {
    return num_inputs() > layout().num_tangents;
  }
  // The whole of a backward pass that begins and ends here, without the engine, whose own work is longer than a small layer's. False,
  // with nothing done, where the node does not lead to unwatched leaves alone, where a hook looks at it, where nothing is compiled for
  // such a pass, or where Python would run inside: it could ask which pass this is.
  bool run_alone(size_t entry, const at::Tensor& tangent);
  // See expand.h. Only tells where that cannot be. `creates_graph`: of the pass it is for; eager then makes the region's next calls.
  void expand(bool creates_graph);
  bool is_expanded() const {
    return !parts_.empty();
  }
  const std::vector<c10::intrusive_ptr<Node>>& parts() const {
    return parts_;
  }
  // Where what comes in by that entry goes, once the node is expanded.
  torch::autograd::Edge entry_of_part(size_t entry) const;
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
  bool leaves_sums_to_the_engine(const Plan& plan) const;
  std::vector<int64_t> written_over(const torch::autograd::variable_list& tangents) const;
  bool is_owned(const torch::autograd::variable_list& tangents, size_t position) const;
  std::vector<uint32_t> counted_before(const CompiledBackward& backward, const torch::autograd::variable_list& tangents) const;
  void take_sums(torch::autograd::variable_list& tangents, const std::vector<bool>& needed) const;
  std::vector<bool> needed_now() const;
  Key key_now(const torch::autograd::variable_list& tangents, const std::vector<bool>& needed) const;
  torch::autograd::variable_list replay(
      const CompiledBackward& backward, torch::autograd::variable_list&& tangents, bool keeps_graph);
  torch::autograd::variable_list with_views(torch::autograd::variable_list grads, const CompiledBackward& backward) const;
  template <typename Give> // (position of a saved tensor) -> it
  std::vector<c10::IValue> inputs_of(
      const CompiledBackward& backward, torch::autograd::variable_list&& tangents, const Give& give) const;
  torch::autograd::variable_list replay_recomputed(
      const CompiledBackward& backward, torch::autograd::variable_list&& tangents, const std::vector<bool>& needed);
  torch::autograd::variable_list unpack_in_turn(
      const torch::autograd::variable_list& tangents, const std::vector<bool>& needed, torch::autograd::variable_list unpacked = {});
  torch::autograd::variable_list derive(const torch::autograd::variable_list& tangents, const std::vector<bool>& needed);
  std::optional<torch::autograd::variable_list> differentiate(
      const torch::autograd::variable_list& saved,
      const torch::autograd::variable_list& tangents,
      const std::vector<bool>& needed);
  torch::autograd::variable_list gradients(torch::autograd::variable_list&& tangents, bool is_compilable);
  bool is_packed() const {
    return packed_by_ != PackedBy::nobody;
  }
  bool is_kept(size_t position) const;
  bool is_own(size_t position) const;
  bool is_transpose(size_t position) const;
  at::Tensor unpack(size_t position);
  at::Tensor unpack_with_history(size_t position);
  torch::autograd::Edge later_view(size_t position) const;
  void refuse_second_backward(const std::vector<int64_t>& read, bool frees_hidden) const;
  void free(size_t position);
  void release(const std::vector<int64_t>& read, bool frees_hidden);
  void put_back(const CompiledBackward& backward, const std::vector<bool>& are_own, const std::vector<c10::IValue>& left);
  void release_all();

  std::shared_ptr<const RegionLayout> region_;
  size_t number_;
  std::vector<int64_t> symbols_;
  std::vector<int64_t> shapes_;
  SavedTensors saved_;
  PackedBy packed_by_ = PackedBy::nobody;
  std::vector<bool> is_released_;
  bool is_hidden_released_ = false;
  std::vector<c10::intrusive_ptr<Node>> parts_; // once it is expanded: a node for each of eager's
  std::vector<std::pair<size_t, size_t>> entries_of_parts_; // part and entry, for each entry
};

// The same tensor, its memory and version, with that history.
at::Tensor with_history(const at::Tensor& tensor, torch::autograd::Edge edge);

// What a compiled backward's plan gave, as a node gives it to the engine.
torch::autograd::variable_list gradients_of(
    std::vector<c10::IValue> results, const CompiledBackward& backward, const std::vector<uint32_t>& counted_before = {});

// Whether a backward pass from these roots meets segments and leaves only. False where that takes long to tell.
bool consists_of_segments(const std::vector<at::Tensor>& roots);

// Whether it meets segments, whatever else it meets, and no node that runs Python. False where that takes long to tell.
bool leads_to_segments(const at::Tensor& root);

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

} // namespace gradc
