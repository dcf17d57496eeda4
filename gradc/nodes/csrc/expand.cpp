#include "nodes/csrc/expand.h"

#include "csrc/autograd.h"
#include "nodes/csrc/thread_counts.h"

#include <torch/csrc/autograd/cpp_hook.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/python_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <atomic>
#include <string_view>
#include <typeinfo>
#include <unordered_set>
#include <utility>

namespace gradc {

using torch::autograd::Edge;
using torch::autograd::Node;
using torch::autograd::variable_list;

namespace {

// Whether a pass has made a graph in another thread than that which asked for it, ever: until then each pass is of one thread's nodes.
std::atomic<bool> has_foreign_nodes = false;

bool is_elsewhere(const at::Tensor& tensor) {
  return tensor.defined() && !tensor.is_cpu();
}

std::vector<SegmentNode*> segments_among(const NodesOfPass& nodes) {
  std::vector<SegmentNode*> segments;
  for (const auto& node : nodes) {
    if (auto* segment = dynamic_cast<SegmentNode*>(node.get())) {
      segments.push_back(segment);
    }
  }
  // What a segment leads to comes first.
  const auto is_earlier = [](const SegmentNode* one, const SegmentNode* other) { return one->sequence_nr() < other->sequence_nr(); };
  std::stable_sort(segments.begin(), segments.end(), is_earlier);
  return segments;
}

// Whether eager could run a node of another thread between two of the segment's.
bool is_mixed(const SegmentNode& segment, const NodesOfPass& nodes) {
  const auto last = segment.sequence_nr(), first = last - std::min(last, segment.layout().span);
  return std::any_of(nodes.begin(), nodes.end(), [&](const auto& node) {
    return node->thread_id() != segment.thread_id() && node->sequence_nr() >= first && node->sequence_nr() <= last;
  });
}

Edge expanded(const Edge& edge) {
  const auto* segment = dynamic_cast<const SegmentNode*>(edge.function.get());
  return segment && segment->is_expanded() ? segment->entry_of_part(edge.input_nr) : edge;
}

void lead_to_parts(const NodesOfPass& nodes) {
  for (const auto& node : nodes) {
    for (auto& edge : node->next_edges()) {
      if (auto to = expanded(edge); to != edge) {
        edge = std::move(to); // the same topological number: see SegmentNode::expand
      }
    }
  }
}

// torch's libraries keep the type information of their hooks to themselves, but for the name.
template <class Hook>
Hook* as_hook(torch::autograd::FunctionPreHook& hook, const char* name) {
  return std::string_view(typeid(hook).name()) == name ? static_cast<Hook*>(&hook) : nullptr;
}

// Of a hook on one output, which output; null for hooks of other kinds.
size_t* number_in(torch::autograd::FunctionPreHook& hook) {
  if (auto* of_python = as_hook<torch::autograd::PyFunctionTensorPreHook>(hook, "N5torch8autograd23PyFunctionTensorPreHookE")) {
    return &of_python->value_idx;
  }
  if (auto* of_cpp = as_hook<torch::autograd::CppFunctionTensorPreHook>(hook, "N5torch8autograd24CppFunctionTensorPreHookE")) {
    return &of_cpp->value_idx_;
  }
  if (auto* retains = as_hook<torch::autograd::CppFunctionSingleTensorPreHook>(hook, "N5torch8autograd30CppFunctionSingleTensorPreHookE")) {
    return &retains->value_idx_;
  }
  return nullptr;
}

// A tensor that was made before its segment was expanded leads to the segment still, and hooks that it gets stand there. What leads to the
// parts is to meet them.
void move_hooks_to_parts(SegmentNode& segment) {
  auto& hooks = segment.Node::tensor_pre_hooks();
  for (auto& hook : hooks) {
    if (size_t* number = number_in(*hook)) {
      const auto to = segment.entry_of_part(*number);
      *number = to.input_nr;
      to.function->add_tensor_pre_hook(std::move(hook));
    }
  }
  hooks.erase(std::remove(hooks.begin(), hooks.end(), nullptr), hooks.end());
  auto& retaining = segment.retains_grad_hooks();
  for (auto& [entry, hook] : retaining) {
    if (size_t* number = number_in(*hook)) {
      const auto to = segment.entry_of_part(*number);
      *number = to.input_nr;
      to.function->add_retains_grad_hook(std::move(hook), to.input_nr);
    }
  }
  std::erase_if(retaining, [](const auto& item) { return !item.second; });
}

void lead_to_parts(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.grad_fn()) {
    return;
  }
  const auto edge = torch::autograd::impl::gradient_edge(tensor);
  if (auto to = expanded(edge); to != edge) {
    torch::autograd::impl::set_gradient_edge(tensor, std::move(to));
  }
}

} // namespace

void expand_segments(const variable_list& roots, const variable_list& inputs, bool creates_graph) {
  if (creates_graph && std::any_of(roots.begin(), roots.end(), is_elsewhere)) {
    has_foreign_nodes = true;
  }
  if (!has_foreign_nodes) {
    return;
  }
  const auto nodes = nodes_from(roots);
  bool has_parts = false;
  for (auto* segment : segments_among(nodes)) {
    if (!segment->is_expanded() && segment->layout().may_expand && (creates_graph || is_mixed(*segment, nodes))) {
      segment->expand(creates_graph);
    }
    if (segment->is_expanded()) {
      has_parts = true;
      move_hooks_to_parts(*segment);
    }
  }
  if (!has_parts) {
    return;
  }
  lead_to_parts(nodes_from(roots));
  for (const auto* tensors : {&roots, &inputs}) {
    std::for_each(tensors->begin(), tensors->end(), [](const at::Tensor& tensor) { lead_to_parts(tensor); });
  }
}

// The nodes have the topological number of the segment, which those that lead to it go by: the engine asks only whether a node's is lower
// than that of one it may lead to.
void SegmentNode::expand(bool creates_graph) {
  if (is_hidden_released_ || std::find(is_released_.begin(), is_released_.end(), true) != is_released_.end()) {
    return; // the engine will say so
  }
  const auto found = region_->derive->expand(number_, symbols_);
  region_->was_expanded = region_->was_expanded || creates_graph;
  if (!found || is_packed() || !layout().later.empty() || layout().has_spoilt || has_hooks(*this)) {
    return;
  }
  const auto& fine = *found;
  std::vector<c10::intrusive_ptr<SegmentNode>> parts;
  const auto part_of = [&](const Edge& edge) {
    return edge.function.get() == this ? Edge(parts[fine.entries[edge.input_nr].first], fine.entries[edge.input_nr].second) : expanded(edge);
  };
  for (size_t i = 0; i < fine.parts.size(); ++i) {
    const auto& plan = fine.parts[i];
    auto part = c10::make_intrusive<SegmentNode>(fine.region, plan.number, symbols_, fine.shapes, sequence_nr() - plan.before_last);
    torch::autograd::edge_list edges;
    for (size_t exit = 0; exit < plan.exits.size(); ++exit) {
      const auto& layout = part->layout().exits[exit];
      edges.push_back(plan.exits[exit] >= 0 ? expanded(next_edge(plan.exits[exit]))
                                            : Edge(parts[fine.index_of(layout.segment)], static_cast<uint32_t>(layout.entry)));
    }
    part->next_edges() = std::move(edges);
    part->topological_nr_ = topological_nr();
    part->thread_id_ = thread_id();
    part->show_entries(part->layout().num_tangents);
    parts.push_back(part);
    SavedTensors saved;
    saved.variables.resize(plan.saved.size());
    for (size_t position = 0; position < plan.saved.size(); ++position) {
      const auto& source = part->layout().saved[position];
      auto tensor = unpack_with_history(plan.saved[position]);
      if (source.is_kept) {
        saved.kept.resize(plan.saved.size());
        saved.kept[position] = std::move(tensor);
        continue;
      }
      if (tensor.defined() && tensor.grad_fn()) {
        if (const auto edge = torch::autograd::impl::gradient_edge(tensor); part_of(edge) != edge) {
          tensor = with_history(tensor, part_of(edge));
        }
      }
      saved.variables[position] = torch::autograd::SavedVariable(tensor, part->layout().is_output(position, part->number()));
    }
    part->save(std::move(saved), PackedBy::nobody);
  }
  entries_of_parts_ = fine.entries;
  parts_.assign(parts.begin(), parts.end());
  release_all();
}

Edge SegmentNode::entry_of_part(size_t entry) const {
  const auto [index, number] = entries_of_parts_[entry];
  auto& part = static_cast<SegmentNode&>(*parts_[index]);
  part.show_entries(number + 1);
  return Edge(parts_[index], static_cast<uint32_t>(number));
}

} // namespace gradc
