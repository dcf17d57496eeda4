#include "nodes/csrc/accumulate.h"

#include "csrc/autograd.h"
#include "csrc/plain.h"
#include "csrc/sizes.h"
#include "csrc/streams.h"
#include "csrc/torch_internals.h"

#include <ATen/CachedTensorUtils.h>
#include <ATen/record_function.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/utils/grad_layout_contract.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <mutex>
#include <typeinfo>
#include <utility>
#include <vector>

namespace gradc {

using torch::autograd::AccumulateGrad;
using torch::autograd::Node;
using torch::autograd::variable_list;

namespace {

// One is not worth a callback at the end of the pass.
constexpr size_t few = 2;

// The positions of the edges to leaves that qualify; none if any leaf has hooks, which see in what order gradients arrive.
// The last of those on another device goes the engine's way: by a leaf that it comes to it knows which stream its caller's is to wait for.
std::vector<size_t> unwatched_leaves(const Node& node, const variable_list& grads) {
  std::vector<size_t> positions;
  bool has_stream = false;
  for (size_t i = 0; i < grads.size(); ++i) {
    const auto& edge = node.next_edge(i);
    auto* target = edge.function.get();
    if (!target || typeid(*target) != typeid(AccumulateGrad)) {
      continue;
    }
    if (has_hooks(*target)) {
      return {};
    }
    const auto& metadata = target->input_metadata(edge.input_nr);
    if (grads[i].defined() && edge.function.use_count() == 1 && is_taken_as_is(grads[i], metadata) && runs_here(*target)) {
      positions.push_back(i);
      has_stream = has_stream || !grads[i].is_cpu();
    }
  }
  if (has_stream) {
    positions.pop_back();
  }
  return positions;
}

// The edges of one node to leaves that have got their gradients: away for as long as it lives, or until they are shown.
class HiddenEdges {
 public:
  HiddenEdges(Node& node, std::vector<size_t> positions) : node_(node.getptr()), positions_(std::move(positions)) {
    for (const auto position : positions_) {
      leaves_.push_back(std::move(node.next_edges()[position].function));
    }
  }
  ~HiddenEdges() {
    show();
  }
  HiddenEdges(const HiddenEdges&) = delete;
  HiddenEdges& operator=(const HiddenEdges&) = delete;
  HiddenEdges(HiddenEdges&&) = delete;
  HiddenEdges& operator=(HiddenEdges&&) = delete;

  // A node whose edges are back before the engine has looked at them sends the leaves nothing, which they ignore.
  void show() {
    if (is_shown_.exchange(true)) {
      return;
    }
    for (size_t i = 0; i < positions_.size(); ++i) {
      node_->next_edges()[positions_[i]].function = std::move(leaves_[i]);
    }
  }

 private:
  std::atomic<bool> is_shown_{false}; // a graph task may end in another thread
  c10::intrusive_ptr<Node> node_;
  std::vector<size_t> positions_;
  std::vector<c10::intrusive_ptr<Node>> leaves_;
};

// What this thread hides: of one node at most, since each segment shows what is hidden before it runs. Never another thread's, whose
// engine may be reading those very edges.
thread_local std::weak_ptr<HiddenEdges> hidden_here;

// A backward pass of the engine's own, over the whole graph, that nobody profiles.
bool is_plain_pass() {
  return torch::autograd::get_current_graph_task_id() != -1 && !torch::autograd::get_current_graph_task_keep_graph() &&
      torch::autograd::get_current_graph_task_exec_info()->empty() && !at::hasCallbacks();
}

bool is_new(const at::Tensor& grad) {
  const auto* tensor = grad.unsafeGetTensorImpl();
  return !tensor->autograd_meta() && !tensor->pyobj_slot()->load_pyobj() && torch::autograd::impl::is_tensor_stealable(grad, 1) &&
      !at::caching::is_cached_tensor(grad) && has_plain_keys(grad);
}

// Makes a gradient the leaf's first one, as the leaf's node does with one that nobody else holds, but for a copy of the tensor that
// would only cut it off from a history: it has none. False, with nothing done, where the node would do otherwise.
bool take_first(AccumulateGrad& node, at::Tensor& grad) {
  const auto& leaf = node.variable;
  const bool is_usual = has_plain_keys(leaf) && leaf.requires_grad() && !leaf.grad_fn() && torch::autograd::impl::hooks(leaf).empty();
  if (!is_usual || !is_new(grad) || !torch::autograd::utils::obeys_layout_contract(grad, leaf)) {
    return false;
  }
  const std::lock_guard lock(mutex_of(node));
  auto& present = leaf.mutable_grad();
  if (present.defined()) {
    return false;
  }
  grad.unsafeGetTensorImpl()->set_allow_tensor_metadata_change(false);
  present = std::move(grad);
  return true;
}

// The same for a leaf to which no node leads. Nobody makes one meanwhile: that takes the same lock.
bool take_first_without_node(const at::Tensor& leaf, at::Tensor& grad) {
  auto* meta = torch::autograd::impl::get_autograd_meta(leaf);
  const bool is_like = has_plain_keys(leaf) && are_equal(grad.sizes(), leaf.sizes()) && grad.dtype() == leaf.dtype() && !meta->grad_dtype_;
  if (!is_like || !is_new(grad) || !torch::autograd::utils::obeys_layout_contract(grad, leaf)) {
    return false;
  }
  const std::lock_guard lock(meta->mutex_);
  if (meta->grad_.defined() || !meta->grad_accumulator_.expired()) {
    return false;
  }
  grad.unsafeGetTensorImpl()->set_allow_tensor_metadata_change(false);
  meta->grad_ = std::move(grad);
  return true;
}

void give(AccumulateGrad& leaf, at::Tensor grad) {
  if (take_first(leaf, grad)) {
    return;
  }
  variable_list alone;
  alone.push_back(std::move(grad));
  leaf(std::move(alone));
}

// As the engine checks what a node gives; it may cast or sum it.
void check(const torch::autograd::edge_list& edges, variable_list& grads, const std::string& name) {
  const auto is_good = [&](const auto& edge, const at::Tensor& grad) {
    return !grad.defined() || !edge.function || is_taken_as_is(grad, edge.function->input_metadata(edge.input_nr));
  };
  if (!std::equal(edges.begin(), edges.end(), grads.begin(), is_good)) {
    torch::autograd::validate_outputs(edges, grads, [&](const std::string& text) { return name + ": " + text; });
  }
}

} // namespace

bool is_unwatched_leaf(const at::Tensor& tensor) {
  const auto* meta = torch::autograd::impl::get_autograd_meta(tensor);
  const auto leads_to_base = [](const torch::autograd::AutogradMeta& meta) { // a view by detach() does not
    return meta.is_view_ && static_cast<const torch::autograd::DifferentiableViewMeta&>(meta).has_bw_view();
  };
  if (!meta || !meta->requires_grad_ || meta->grad_fn_ || leads_to_base(*meta) || !meta->hooks_.empty() || meta->post_acc_grad_hooks_) {
    return false;
  }
  const auto node = torch::autograd::impl::try_get_grad_accumulator(tensor);
  return is_ordered(tensor) && (!node || (!has_hooks(*node) && runs_here(*node)));
}

void give_to_leaf(const at::Tensor& leaf, at::Tensor grad) {
  if (take_first_without_node(leaf, grad)) {
    return;
  }
  const torch::autograd::edge_list edges{torch::autograd::impl::gradient_edge(leaf)};
  variable_list grads{std::move(grad)};
  check(edges, grads, "gradc::Segment");
  give(static_cast<AccumulateGrad&>(*edges.front().function), std::move(grads.front()));
}

bool leads_to_unwatched_leaves(const Node& node) {
  using Held = std::pair<const Node*, size_t>; // with the number of those that hold it
  std::vector<Held> shared; // once for each edge
  for (const auto& edge : node.next_edges()) {
    auto* target = edge.function.get();
    if (!target) {
      continue;
    }
    if (typeid(*target) != typeid(AccumulateGrad) || has_hooks(*target) ||
        !is_ordered(static_cast<AccumulateGrad*>(target)->variable) || !runs_here(*target)) {
      return false;
    }
    if (const auto holders = edge.function.use_count(); holders != 1) {
      shared.emplace_back(target, holders);
    }
  }
  std::sort(shared.begin(), shared.end());
  return std::all_of(shared.begin(), shared.end(), [&](const Held& held) {
    const auto [first, last] = std::equal_range(shared.begin(), shared.end(), held);
    return static_cast<size_t>(last - first) == held.second;
  });
}

void give_to_leaves(Node& node, variable_list grads) {
  const auto& edges = node.next_edges();
  check(edges, grads, node.name());
  for (size_t i = 0; i < grads.size(); ++i) {
    if (grads[i].defined() && edges[i].function) {
      give(static_cast<AccumulateGrad&>(*edges[i].function), std::move(grads[i]));
    }
  }
}

void accumulate_unwatched(Node& node, variable_list& grads) {
  if (!is_plain_pass() || !node.post_hooks().empty()) {
    return;
  }
  auto positions = unwatched_leaves(node, grads);
  if (positions.size() < few) {
    return;
  }
  std::vector<c10::intrusive_ptr<Node>> leaves;
  leaves.reserve(positions.size());
  for (const auto position : positions) {
    leaves.push_back(node.next_edge(position).function);
  }
  auto hidden = std::make_shared<HiddenEdges>(node, positions);
  hidden_here = hidden;
  // Called or not, the callback goes with the graph task, whether that ends well or in an error.
  torch::autograd::Engine::get_default_engine().queue_callback([hidden = std::move(hidden)]() mutable { hidden.reset(); });
  for (size_t i = 0; i < positions.size(); ++i) {
    give(static_cast<AccumulateGrad&>(*leaves[i]), std::move(grads[positions[i]]));
  }
}

void show_hidden_edges() {
  if (const auto hidden = hidden_here.lock()) {
    hidden->show();
  }
}

} // namespace gradc
