// Gradients of a segment that Python computes: under create_graph, where they have a history themselves, and where no Program serves.
#include "csrc/devices.h"
#include "csrc/torch_internals.h"
#include "nodes/csrc/autocast_cache.h"
#include "nodes/csrc/segment_node.h"

#include <ATen/autocast_mode.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <mutex>
#include <set>
#include <utility>

namespace gradc {

using torch::autograd::variable_list;

// Under create_graph the saved values become inputs of a graph that leads back to the nodes that made them.
variable_list SegmentNode::derive(const variable_list& tangents, const std::vector<bool>& needed) {
  const bool is_freed =
      is_hidden_released_ || std::find(is_released_.begin(), is_released_.end(), true) != is_released_.end();
  TORCH_CHECK(!is_freed, torch::autograd::ERR_BACKWARD_TWICE);
  variable_list saved;
  saved.reserve(saved_.variables.size());
  for (size_t position = 0; position < saved_.variables.size(); ++position) {
    if (!layout().saved[position].spoilt.empty()) {
      saved.emplace_back(); // none of what is kept; Python raises if a node that runs would read it
      continue;
    }
    saved.push_back(unpack_with_history(position));
    if (auto* owner = dynamic_cast<SegmentNode*>(saved.back().grad_fn().get()); owner && at::GradMode::is_enabled()) {
      owner->show_entries(owner->layout().entries.size());
    }
  }
  const auto owned = written_over(tangents);
  variable_list all = tangents;
  if (at::GradMode::is_enabled()) {
    take_sums(all, needed);
  }
  const bool keeps_graph = torch::autograd::get_current_graph_task_keep_graph();
  std::vector<int64_t> let_go;
  try {
    auto found = differentiate(saved, all, needed);
    auto grads =
        found ? *std::move(found) : region_->derive->grads(number_, symbols_, saved, all, needed, is_packed(), owned, let_go);
    if (!keeps_graph) {
      release_all();
    }
    return grads;
  } catch (...) {
    if (!keeps_graph) {
      release(let_go, /*frees_hidden=*/false);
    }
    throw;
  }
}

// Appends to the tangents what each target has got so far, taken out of the engine's buffers. Under create_graph the engine
// adds up with nodes of its own. In eager they stand between those of the formulas, and the next order goes through all of them
// in that order: so the segment adds up itself, and sends the sum along the first exit to each target.
void SegmentNode::take_sums(variable_list& tangents, const std::vector<bool>& needed) const {
  const auto is_elsewhere = [](const at::Tensor& tangent) { return tangent.defined() && !is_on(tangent, &KnownDevice::is_synchronous); };
  if (layout().targets.empty() || std::any_of(tangents.begin(), tangents.end(), is_elsewhere)) {
    return; // elsewhere, buffers come with streams and events
  }
  std::set<std::pair<const Node*, uint32_t>> targets;
  for (const auto& exits : layout().targets) {
    const auto& edge = next_edge(exits.front());
    if (!targets.emplace(edge.function.get(), edge.input_nr).second) {
      return; // two casts of one weight share a copy: what the tape has for two targets is one
    }
  }
  tangents.resize(layout().entries.size());
  auto& task = current_graph_task();
  const std::lock_guard lock(task.mutex_);
  for (const auto& exits : layout().targets) {
    const auto& edge = next_edge(exits.front());
    const auto found = needed[exits.front()] ? task.not_ready_.find(edge.function.get()) : task.not_ready_.end();
    tangents.push_back(found == task.not_ready_.end() ? at::Tensor() : std::move(found->second.buffer[edge.input_nr]));
    if (found != task.not_ready_.end()) {
      found->second.buffer[edge.input_nr] = at::Tensor();
    }
  }
}

std::optional<variable_list> SegmentNode::differentiate(
    const variable_list& saved, const variable_list& tangents, const std::vector<bool>& needed) {
  if (!at::GradMode::is_enabled() || region_->forced_autocast || is_packed() || !is_usual(tangents) || layout().has_spoilt) {
    return std::nullopt;
  }
  Key key = make_key(region_->forced_autocast, tangents, layout().entries.size(), needed);
  for (const auto& tangent : tangents) {
    const bool has_history = tangent.defined() && tangent.requires_grad();
    key.push_back(has_history + (has_history && tangent.is_leaf()));
  }
  if (is_autocast_nested() && at::autocast::is_autocast_cache_enabled()) {
    for (const auto& tensor : saved) {
      key.push_back(tensor.requires_grad() && tensor.is_leaf() && !tensor.is_view()); // autocast keeps copies of such
    }
  }
  return region_->derive->differentiate(number_, std::move(key), symbols_, saved, tangents, needed);
}

} // namespace gradc
