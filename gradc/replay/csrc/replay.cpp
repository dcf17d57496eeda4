#include "replay/csrc/replay.h"

#include "capture/csrc/engine_run.h"
#include "capture/csrc/holders.h"
#include "capture/csrc/run_node.h"
#include "csrc/autograd.h"

#include <torch/csrc/autograd/variable.h>

#include <algorithm>

namespace gradc {

namespace {

class Replay {
 public:
  Replay(Walk& walk, const Recording& recording)
      : walk_(walk), recording_(recording), values_(recording.num_slots), symbols_(symbol_values(walk, recording)) {
    if (!recording.boundaries.empty()) {
      for (const auto& tensor : walk.tensors) {
        versions_.push_back(version_of(tensor));
      }
    }
    for (size_t i = 0; i < recording.inputs.size(); ++i) {
      values_[recording.inputs[i]] = std::move(walk.tensors[i]);
    }
    for (const auto& live : walk.nodes) {
      if (live.grad >= 0) {
        grads_.push_back(values_[recording.inputs[live.grad]].unsafeGetTensorImpl());
      } else {
        grads_.push_back(nullptr);
      }
      if (!recording.boundaries.empty() && !live.is_needed && !live.captures.empty() && !has_hooks(*live.node)) {
        unheard_.push_back(live.node.get());
      }
    }
    walk.tensors.clear();
  }

  variable_list run(bool& gave_up) {
    for (size_t i = 0; i < recording_.pieces.size(); ++i) {
      run_piece(recording_.pieces[i]);
      if (i == recording_.boundaries.size()) {
        break;
      }
      const auto& boundary = recording_.boundaries[i];
      bool is_kept_as_before = true;
      auto outputs = run_boundary(boundary, is_kept_as_before);
      if (!is_kept_as_before || !is_expected(boundary, outputs) || !is_as_walked(recording_.pieces[i + 1])) {
        gave_up = true;
        return go_on(i, std::move(outputs));
      }
      for (size_t k = 0; k < outputs.size(); ++k) {
        if (boundary.outputs[k] >= 0) {
          values_[boundary.outputs[k]] = std::move(outputs[k]);
        }
      }
      for (const auto slot : boundary.dying) {
        values_[slot].reset();
      }
    }
    variable_list results;
    for (const auto slot : recording_.results) {
      results.push_back(slot < 0 ? at::Tensor() : values_[slot]);
    }
    return results;
  }

 private:
  void release(const std::vector<uint32_t>& nodes) {
    if (!walk_.request.keep_graph) {
      for (const auto node : nodes) {
        walk_.nodes[node].node->release_variables();
      }
    }
  }

  // Nodes let go of what they saved first: the last reference is the piece's, which drops it after its last use.
  void run_piece(const Piece& piece) {
    release(piece.nodes);
    std::vector<c10::IValue> inputs;
    inputs.reserve(piece.inputs.size() + piece.symbols.size());
    for (const auto slot : piece.inputs) {
      inputs.emplace_back(values_[slot]);
    }
    for (const auto symbol : piece.symbols) {
      inputs.emplace_back(symbols_[symbol]);
    }
    for (const auto slot : piece.dying) {
      values_[slot].reset();
    }
    if (!piece.outputs.empty() || !piece.inputs.empty() || piece.plan || piece.runner) {
      auto outputs = piece.plan ? gradc::run(*piece.plan, std::move(inputs)) : piece.runner(std::move(inputs));
      for (size_t i = 0; i < outputs.size(); ++i) {
        values_[piece.outputs[i]] = std::move(outputs[i]).toTensor();
      }
      for (const auto& [position, version] : piece.recounted) {
        set_version(values_[piece.outputs[position]], version);
      }
    }
    for (const auto& [node, slot] : piece.grads) {
      walk_.nodes[node].accumulate->variable.mutable_grad() = std::move(values_[slot]);
    }
  }

  variable_list run_boundary(const Boundary& boundary, bool& is_kept_as_before) {
    variable_list inputs, watched; // other nodes wait for the watched ones, too
    for (const auto slot : boundary.inputs) {
      inputs.push_back(slot < 0 ? at::Tensor() : values_[slot]);
    }
    for (const auto& expected : boundary.kept) {
      watched.push_back(inputs[expected.first]);
    }
    for (const auto slot : boundary.inputs) {
      if (slot >= 0 && std::find(boundary.dying.begin(), boundary.dying.end(), slot) != boundary.dying.end()) {
        values_[slot].reset();
      }
    }
    const auto before = Holders::count(watched);
    auto outputs = run_live(boundary, std::move(inputs));
    const auto are_kept = Holders::kept_among(watched, before, outputs);
    is_kept_as_before = std::equal(
        are_kept.begin(), are_kept.end(), boundary.kept.begin(), [](bool is_kept, const auto& expected) {
          return is_kept == expected.second;
        });
    return outputs;
  }

  variable_list run_live(const Boundary& boundary, variable_list inputs) {
    auto& node = *walk_.nodes[boundary.node].node;
    if (!boundary.is_needed) {
      return call_hooks_alone(node, std::move(inputs));
    }
    auto is_stealable = boundary.is_stealable; // below autograd a view does not hold its base: only the recording tells
    for (size_t i = 0; i < is_stealable.size(); ++i) {
      is_stealable[i] = is_stealable[i] && may_write_over(inputs[i]);
    }
    auto outputs = run_node(node, std::move(inputs), walk_.request.keep_graph, std::move(is_stealable));
    if (!walk_.request.keep_graph) {
      node.release_variables();
    }
    return outputs;
  }

  bool is_expected(const Boundary& boundary, const variable_list& outputs) const {
    if (outputs.size() != boundary.metadata.size()) {
      return false;
    }
    for (size_t i = 0; i < outputs.size(); ++i) {
      Bytes metadata;
      Numbers numbers;
      append_metadata(metadata, numbers, outputs[i]);
      if (!(metadata == boundary.metadata[i]) || !are_equal(numbers, boundary.numbers[i], symbols_)) {
        return false;
      }
    }
    return std::all_of(boundary.holders.begin(), boundary.holders.end(), [&](const auto& expected) {
      const auto& output = outputs[expected.first];
      return may_write_over(output, num_among(outputs, output)) == expected.second;
    });
  }

  // A hook may have changed what the rest would find: hooks, existing gradients, saved tensors.
  bool is_as_walked(const Piece& piece) const {
    for (const auto node : piece.nodes) {
      if (has_hooks(*walk_.nodes[node].node)) {
        return false;
      }
    }
    for (auto* node : unheard_) {
      if (has_hooks(*node)) {
        return false;
      }
    }
    for (const auto node : piece.leaves) {
      const auto& grad = std::as_const(walk_.nodes[node].accumulate->variable).grad();
      if (grad.unsafeGetTensorImpl() != (grads_[node] ? grads_[node] : at::Tensor().unsafeGetTensorImpl())) {
        return false;
      }
    }
    for (size_t i = 0; i < recording_.inputs.size(); ++i) {
      const auto& value = values_[recording_.inputs[i]];
      if (value.defined() && version_of(value) != versions_[i] && !is_grad(value)) {
        return false;
      }
      if (walk_.request.create_graph && value.requires_grad()) {
        return false;
      }
    }
    return true;
  }

  bool is_grad(const at::Tensor& value) const {
    return std::find(grads_.begin(), grads_.end(), value.unsafeGetTensorImpl()) != grads_.end();
  }

  at::Tensor value(Index slot) const {
    return slot < 0 ? at::Tensor() : values_[slot];
  }

  std::vector<Waiting<at::Tensor>> filled(const std::vector<Waiting<Index>>& all) const {
    std::vector<Waiting<at::Tensor>> result;
    for (const auto& waiting : all) {
      result.push_back({waiting.node, {}});
      for (const auto slot : waiting.inputs) {
        result.back().inputs.push_back(value(slot));
      }
    }
    return result;
  }

  // The nodes that have run when the boundary of that number has.
  std::vector<uint32_t> done_until(size_t number) const {
    std::vector<uint32_t> done;
    for (size_t i = 0; i <= number; ++i) {
      const auto& newly_done = recording_.boundaries[i].snapshot.newly_done;
      done.insert(done.end(), newly_done.begin(), newly_done.end());
    }
    return done;
  }

  variable_list go_on(size_t number, variable_list outputs) {
    const auto& boundary = recording_.boundaries[number];
    Snapshot<at::Tensor> state;
    state.not_ready = filled(boundary.snapshot.not_ready);
    state.ready = filled(boundary.snapshot.ready);
    for (const auto slot : boundary.snapshot.results) {
      state.results.push_back(value(slot));
    }
    variable_list handles; // below autograd a view does not hold its base: this holds its memory
    for (const auto slot : boundary.snapshot.views) {
      handles.push_back(new_handle(values_[slot]));
    }
    values_.clear();
    return EngineRun(walk_).resume(done_until(number), std::move(state), boundary.node, std::move(outputs));
  }

  Walk& walk_;
  const Recording& recording_;
  variable_list values_;
  const Numbers symbols_;
  std::vector<uint32_t> versions_;
  std::vector<const c10::TensorImpl*> grads_;
  std::vector<Node*> unheard_; // only asked for, and so in no piece; without hooks so far
};

} // namespace

variable_list replay(Walk& walk, const Recording& recording, bool& gave_up) {
  Replay replay(walk, recording);
  const auto run = [&] { return replay.run(gave_up); };
  return recording.boundaries.empty() ? run() : inside_engine(walk, run);
}

} // namespace gradc
