#include "nodes/csrc/segment_node.h"

#include "csrc/ambient.h"
#include "csrc/autograd.h"
#include "csrc/plain.h"
#include "csrc/streams.h"
#include "csrc/torch_internals.h"
#include "nodes/csrc/accumulate.h"
#include "nodes/csrc/hooks.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/alias.h>
#include <ATen/record_function.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>

#include <algorithm>
#include <mutex>

namespace gradc {

using torch::autograd::SavedVariable;
using torch::autograd::variable_list;

namespace {

// Whether it tells if a sum is written over the tensor: it then keeps strides that a new sum would not have, those of dimensions
// of size 1, or of an empty tensor.
bool has_free_strides(const at::Tensor& tensor) {
  const auto sizes = tensor.sizes();
  const bool has_none_or_one = std::any_of(sizes.begin(), sizes.end(), [](int64_t size) { return size <= 1; });
  return has_none_or_one && tensor.strides() != c10::contiguous_strides(sizes);
}

} // namespace

at::Tensor with_history(const at::Tensor& tensor, torch::autograd::Edge edge) {
  auto made = torch::autograd::make_variable(tensor, std::move(edge));
  torch::autograd::impl::set_version_counter(made, torch::autograd::impl::version_counter(tensor));
  return made;
}

void SegmentNode::save(SavedTensors saved, PackedBy packed_by) {
  saved_ = std::move(saved);
  is_released_.assign(saved_.variables.size(), false);
  packed_by_ = packed_by;
}

// Several threads may do this to one graph, while others run it: the list keeps its place in memory.
void SegmentNode::show_entries(size_t end) {
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  input_metadata_.reserve(layout().entries.size());
  for (size_t number = num_inputs(); number < end; ++number) {
    const auto& entry = layout().entries[number];
    std::vector<c10::SymInt> shape;
    shape.reserve(entry.shape.size());
    for (const auto size : entry.shape) {
      shape.emplace_back(size >= 0 ? size : shapes_[-1 - size]);
    }
    add_input_metadata(entry.options, shape, false, false, c10::typeMetaToScalarType(entry.options.dtype()));
  }
}

std::vector<std::unique_ptr<torch::autograd::FunctionPreHook>>& SegmentNode::tensor_pre_hooks() noexcept {
  auto& hooks = Node::tensor_pre_hooks();
  wrap_output_hooks(hooks, *this);
  return hooks;
}

// The engine calls this after each run without retain_graph. What that run read, `apply` has freed by then; what the nodes
// own that eager would not have run, stays.
void SegmentNode::release_variables() {}

void SegmentNode::free(size_t position) {
  saved_.variables[position] = SavedVariable();
  if (!saved_.own.empty()) {
    saved_.own[position] = at::Tensor();
  }
  if (is_transpose(position)) {
    saved_.transposes[position].let_go();
  }
}

void SegmentNode::release(const std::vector<int64_t>& read, bool frees_hidden) {
  for (const auto position : read) {
    free(position);
    is_released_[position] = true;
  }
  is_hidden_released_ = is_hidden_released_ || frees_hidden;
}

// A run has failed: of what it was given, and has not read for the last time, the nodes have not run. In eager these keep it, and
// a pass along another way may read it.
void SegmentNode::put_back(
    const CompiledBackward& backward, const std::vector<bool>& are_own, const std::vector<c10::IValue>& left) {
  if (left.empty() || at::SavedTensorDefaultHooks::get_hooks().has_value()) {
    return;
  }
  auto value = left.end() - static_cast<std::ptrdiff_t>(symbols_.size() + backward.saved.size());
  for (const auto position : backward.saved) {
    const auto& source = layout().saved[position];
    if (const auto& given = *value++; !given.isTensor()) {
      continue;
    } else if (!are_own.empty() && are_own[position]) {
      saved_.own[position] = given.toTensor();
    } else if (source.is_transposed && !saved_.transposes.empty() && !is_kept(position)) {
      saved_.transposes[position].take_back(given.toTensor());
    } else {
      saved_.variables[position] = SavedVariable(given.toTensor(), layout().is_output(position, number_));
    }
    is_released_[position] = false;
  }
}

bool SegmentNode::is_kept(size_t position) const {
  return !saved_.kept.empty() && saved_.kept[position].defined();
}

bool SegmentNode::is_own(size_t position) const {
  return !saved_.own.empty() && saved_.own[position].defined();
}

bool SegmentNode::is_transpose(size_t position) const {
  return !saved_.transposes.empty() && saved_.transposes[position].defined();
}

at::Tensor SegmentNode::unpack(size_t position) {
  const auto& spoilt = layout().saved[position].spoilt;
  TORCH_CHECK(spoilt.empty(), spoilt);
  if (is_own(position)) {
    return saved_.own[position];
  }
  if (is_transpose(position)) {
    return saved_.transposes[position].unpack();
  }
  return is_kept(position) ? saved_.kept[position] : saved_.variables[position].unpack(getptr());
}

// What is the node's own has none while it is saved: it would hold the node that holds it.
at::Tensor SegmentNode::unpack_with_history(size_t position) {
  at::Tensor tensor = unpack(position);
  if (auto edge = later_view(position); edge.is_valid()) {
    return with_history(tensor, std::move(edge));
  }
  if (!is_own(position) && !is_transpose(position)) {
    return tensor;
  }
  if (const auto entry = layout().saved[position].entry; entry >= 0) {
    tensor = with_history(tensor, torch::autograd::Edge(getptr(), entry));
  }
  if (is_transpose(position)) {
    saved_.transposes[position].share_version(tensor);
  }
  return tensor;
}

// No edge where the position is none of a view, and once the view's node is gone.
torch::autograd::Edge SegmentNode::later_view(size_t position) const {
  const auto* view = layout().later_at(position);
  return view ? torch::autograd::Edge(saved_.later[view - layout().later.data()].lock(), view->entry) : torch::autograd::Edge();
}

void SegmentNode::know_later_views(const std::vector<c10::intrusive_ptr<Node>>& nodes) {
  for (const auto& view : layout().later) {
    saved_.later.emplace_back(nodes[view.segment]);
  }
}

void SegmentNode::release_all() {
  for (size_t position = 0; position < saved_.variables.size(); ++position) {
    free(position);
    is_released_[position] = !is_kept(position);
  }
  is_hidden_released_ = layout().has_hidden_saves;
}

void SegmentNode::refuse_second_backward(const std::vector<int64_t>& read, bool frees_hidden) const {
  bool is_freed = is_hidden_released_ && frees_hidden;
  for (const auto position : read) {
    is_freed = is_freed || is_released_[position];
  }
  TORCH_CHECK(!is_freed, torch::autograd::ERR_BACKWARD_TWICE);
}

variable_list SegmentNode::apply(variable_list&& tangents) {
  RECORD_USER_SCOPE("gradc: backward of segment " + std::to_string(number_) + " of " + region_->name);
  const std::lock_guard lock(mutex_);
  show_hidden_edges();
  const bool is_compilable = !at::GradMode::is_enabled() && is_usual(tangents);
  auto grads = gradients(std::move(tangents), is_compilable);
  if (is_entered_inside()) {
    pass_over_hooks_of_unreached_leaves(*this, grads);
  }
  if (is_compilable && !is_packed() && !WalkedRun::of(*this) && !saved_.variables.empty()) {
    accumulate_unwatched(*this, grads);
  }
  return grads;
}

std::vector<bool> SegmentNode::needed_now() const {
  std::vector<bool> needed(num_outputs());
  for (size_t i = 0; i < needed.size(); ++i) {
    needed[i] = task_should_compute_output(i);
  }
  return needed;
}

Key SegmentNode::key_now(const variable_list& tangents, const std::vector<bool>& needed) const {
  Key key = make_key(region_->forced_autocast, tangents, layout().entries.size(), needed);
  return complete(std::move(key), may_add_up(), written_over(tangents));
}

variable_list SegmentNode::gradients(variable_list&& tangents, bool is_compilable) {
  const auto needed = needed_now();
  if (!is_compilable) {
    return derive(tangents, needed);
  }
  if (packed_by_ == PackedBy::user) {
    return unpack_in_turn(tangents, needed);
  }
  auto& cache = region_->backwards[number_];
  Key key = key_now(tangents, needed);
  auto found = cache.find(key);
  if (!found.is_known) {
    found.backward = region_->derive->compile(number_, tangents, needed, may_add_up(), written_over(tangents));
    cache.keep(std::move(key), found.backward);
  }
  if (is_packed()) {
    return found.backward ? replay_recomputed(*found.backward, std::move(tangents), needed) : unpack_in_turn(tangents, needed);
  }
  const bool keeps_graph = torch::autograd::get_current_graph_task_keep_graph();
  return found.backward ? replay(*found.backward, std::move(tangents), keeps_graph) : derive(tangents, needed);
}

bool SegmentNode::run_alone(size_t entry, const at::Tensor& tangent) {
  const std::lock_guard lock(mutex_);
  if (has_hooks(*this) || is_packed() || is_expanded() || is_entered_inside() || !runs_here(*this) || !leads_to_unwatched_leaves(*this)) {
    return false;
  }
  const at::NoGradGuard no_grad;
  variable_list tangents(num_inputs());
  tangents[entry] = tangent;
  const auto found = region_->backwards[number_].find(key_now(tangents, needed_now()));
  if (!found.backward || found.backward->plan->has_foreign_steps || leaves_sums_to_the_engine(*found.backward->plan)) {
    return false;
  }
  give_to_leaves(*this, replay(*found.backward, std::move(tangents), /*keeps_graph=*/false));
  return true;
}

// Whether a leaf gets several gradients. The engine adds them up before it adds the sum to the leaf's own.
bool SegmentNode::leaves_sums_to_the_engine(const Plan& plan) const {
  std::vector<const Node*> met;
  for (size_t exit = 0; exit < plan.outputs.size(); ++exit) {
    const auto& target = next_edge(exit).function;
    if (!target || target.use_count() == 1 || plan.is_constant(plan.outputs[exit], &c10::IValue::isNone)) {
      continue;
    }
    if (std::find(met.begin(), met.end(), target.get()) != met.end()) {
      return true;
    }
    met.push_back(target.get());
  }
  return false;
}

// Whether what was compiled for a key may serve: nothing that a key does not tell.
bool SegmentNode::is_usual(const variable_list& tangents) const {
  return unsupported_mode().empty() && std::all_of(tangents.begin(), tangents.end(), [](const at::Tensor& tangent) {
    return !tangent.defined() || is_plain(tangent);
  });
}

// Whether the gradients of one leaf may be added up here, as the engine would add them when this node is done, so that not
// all of them are held at once. Only if no other node could send one in between: all references to the leaf's AccumulateGrad
// are edges of this node's, but for that of a walk. And only if no hook looks at this node's gradients.
bool SegmentNode::may_add_up() const {
  if (layout().shared.empty() || !post_hooks().empty()) {
    return false;
  }
  const bool is_walked = WalkedRun::of(*this) != nullptr;
  for (const auto& exits : layout().shared) {
    const auto& target = next_edge(exits.front()).function;
    if (!target || target.use_count() != exits.size() + is_walked || !dynamic_cast<torch::autograd::AccumulateGrad*>(target.get())) {
      return false;
    }
  }
  return true;
}

// The odd tangents to which the engine would add others in place, as nobody else holds them.
std::vector<int64_t> SegmentNode::written_over(const variable_list& tangents) const {
  std::vector<int64_t> positions;
  for (size_t i = 0; i < tangents.size(); ++i) {
    const auto& tangent = tangents[i];
    if (tangent.defined() && is_plain(tangent) && has_free_strides(tangent) && is_owned(tangents, i)) {
      positions.push_back(static_cast<int64_t>(i));
    }
  }
  return positions;
}

// Whether the engine would add to the tangent in place, as nobody else holds it.
bool SegmentNode::is_owned(const variable_list& tangents, size_t position) const {
  const auto* walked = WalkedRun::of(*this);
  const size_t by_engine = post_hooks().empty() ? 1 : 2;
  return walked && !walked->is_owned().empty() ? walked->is_owned()[position] : may_write_over(tangents[position], by_engine);
}

// Of each gradient in `recounted`, what is counted already in the tangent that eager writes it over, if it does.
std::vector<uint32_t> SegmentNode::counted_before(const CompiledBackward& backward, const variable_list& tangents) const {
  std::vector<uint32_t> counts;
  for (const auto& [position, version, tangent] : backward.recounted) {
    const bool is_written_over = tangent >= 0 && is_plain(tangents[tangent]) && is_owned(tangents, tangent);
    counts.push_back(is_written_over ? version_of(tangents[tangent]) + 1 : 0);
  }
  return counts;
}

template <typename Give>
std::vector<c10::IValue> SegmentNode::inputs_of(
    const CompiledBackward& backward, variable_list&& tangents, const Give& give) const {
  std::vector<c10::IValue> inputs;
  inputs.reserve(tangents.size() + backward.saved.size() + symbols_.size());
  for (auto& tangent : tangents) {
    if (tangent.defined()) {
      inputs.emplace_back(std::move(tangent));
    }
  }
  for (const auto position : backward.saved) {
    inputs.emplace_back(give(position));
  }
  inputs.insert(inputs.end(), symbols_.begin(), symbols_.end());
  return inputs;
}

variable_list SegmentNode::replay(const CompiledBackward& backward, variable_list&& tangents, bool keeps_graph) {
  refuse_second_backward(backward.released, backward.frees_hidden);
  const auto before = counted_before(backward, tangents);
  auto inputs = inputs_of(backward, std::move(tangents), [this](size_t position) { return unpack(position); });
  for (const auto position : backward.unread) {
    unpack(position);
  }
  if (keeps_graph) {
    return with_views(gradients_of(run(*backward.plan, std::move(inputs)), backward, before), backward);
  }
  std::vector<bool> are_own(saved_.own.size());
  std::transform(saved_.own.begin(), saved_.own.end(), are_own.begin(), [](const at::Tensor& own) { return own.defined(); });
  release(backward.released, backward.frees_hidden); // what the plan has read for the last time dies while it runs, as it does in eager
  std::vector<c10::IValue> left;
  try {
    return with_views(gradients_of(run(*backward.plan, std::move(inputs), &left), backward, before), backward);
  } catch (const std::exception&) {
    put_back(backward, are_own, left);
    throw;
  }
}

// A view holds its base, so that eager makes a new tensor of the sum of it and what another node sends to the same place.
variable_list SegmentNode::with_views(variable_list grads, const CompiledBackward& backward) const {
  for (const auto position : backward.plain_views) {
    const auto& target = next_edge(position).function;
    if (target && target.use_count() > 1) {
      grads[position] = at::alias(grads[position]);
    }
  }
  return grads;
}

// With what a checkpoint has computed again. Each is unpacked once only, and what the node has saved stays where the plan raises.
variable_list SegmentNode::replay_recomputed(
    const CompiledBackward& backward, variable_list&& tangents, const std::vector<bool>& needed) {
  refuse_second_backward(backward.released, backward.frees_hidden);
  variable_list unpacked(layout().saved.size());
  bool are_as_dropped = true;
  for (const auto* positions : {&backward.saved, &backward.unread}) {
    for (const auto position : *positions) {
      unpacked[position] = unpack(position);
      are_as_dropped = are_as_dropped && (is_kept(position) || saved_.packed[position].is_of(unpacked[position]));
    }
  }
  if (!are_as_dropped) {
    return unpack_in_turn(tangents, needed, std::move(unpacked));
  }
  const auto before = counted_before(backward, tangents);
  auto inputs = inputs_of(backward, std::move(tangents), [&](size_t position) { return unpacked[position]; });
  unpacked.clear(); // what the plan has read for the last time dies while it runs
  auto results = run(*backward.plan, std::move(inputs));
  auto grads = with_views(gradients_of(std::move(results), backward, before), backward);
  if (!torch::autograd::get_current_graph_task_keep_graph()) {
    release(backward.released, backward.frees_hidden);
  }
  return grads;
}

// Of what hooks packed, each is unpacked where the node that saved it runs, as in eager: they may keep less memory than the tensors.
// `unpacked`: what was unpacked before.
variable_list SegmentNode::unpack_in_turn(const variable_list& tangents, const std::vector<bool>& needed, variable_list unpacked) {
  const auto [read, frees_hidden] = region_->derive->released(number_, tangents, needed);
  refuse_second_backward(read, frees_hidden);
  unpacked.resize(layout().saved.size());
  const auto give = [&](size_t position) { return unpacked[position].defined() ? unpacked[position] : unpack(position); };
  auto grads = region_->derive->grads_in_turn(number_, symbols_, give, tangents, needed, written_over(tangents));
  if (!torch::autograd::get_current_graph_task_keep_graph()) {
    release(read, frees_hidden);
  }
  return grads;
}

namespace {

thread_local const WalkedRun* walked_here = nullptr;

} // namespace

WalkedRun::WalkedRun(const SegmentNode* segment, std::vector<bool> is_owned)
    : segment_(segment), is_owned_(std::move(is_owned)), outer_(std::exchange(walked_here, this)) {}

WalkedRun::~WalkedRun() {
  walked_here = outer_;
}

const WalkedRun* WalkedRun::of(const SegmentNode& segment) {
  return walked_here && walked_here->segment_ == &segment ? walked_here : nullptr;
}

variable_list gradients_of(
    std::vector<c10::IValue> results, const CompiledBackward& backward, const std::vector<uint32_t>& counted_before) {
  variable_list grads;
  grads.reserve(results.size());
  for (auto& result : results) {
    at::Tensor grad = result.isTensor() ? std::move(result).toTensor() : at::Tensor();
    grads.push_back(grad.defined() && grad.requires_grad() ? grad.detach() : std::move(grad));
  }
  for (size_t i = 0; i < backward.recounted.size(); ++i) {
    const auto& [position, version, tangent] = backward.recounted[i];
    set_version(grads[position], version + (counted_before.empty() ? 0 : counted_before[i]));
  }
  for (const auto position : backward.views) {
    grads[position] = at::alias(grads[position]);
  }
  return grads;
}

namespace {

// Whether every node of a backward pass from these roots, but leaves, is one that `may_be_met`. False where there are so many that
// looking costs as much as it saves.
template <typename Predicate>
bool all_nodes(const std::vector<at::Tensor>& roots, const Predicate& may_be_met) {
  constexpr size_t many = 32;
  std::vector<const torch::autograd::Node*> nodes;
  const auto is_met = [&](const torch::autograd::Node* node) {
    if (!node || typeid(*node) == typeid(torch::autograd::AccumulateGrad)) {
      return true;
    }
    if (std::find(nodes.begin(), nodes.end(), node) == nodes.end()) {
      nodes.push_back(node);
    }
    return may_be_met(*node) && nodes.size() <= many;
  };
  for (const auto& root : roots) {
    if (!root.defined() || !is_met(root.grad_fn().get())) {
      return false;
    }
  }
  for (size_t i = 0; i < nodes.size(); ++i) {
    const auto& edges = nodes[i]->next_edges();
    if (!std::all_of(edges.begin(), edges.end(), [&](const auto& edge) { return is_met(edge.function.get()); })) {
      return false;
    }
  }
  return true;
}

bool is_segment(const torch::autograd::Node& node) {
  return typeid(node) == typeid(SegmentNode);
}

} // namespace

bool consists_of_segments(const std::vector<at::Tensor>& roots) {
  return all_nodes(roots, is_segment);
}

bool leads_to_segments(const at::Tensor& root) {
  bool has_segment = false;
  const auto is_no_python = [&has_segment](const torch::autograd::Node& node) {
    has_segment = has_segment || is_segment(node);
    return !is_python(node);
  };
  return all_nodes({root}, is_no_python) && has_segment;
}

} // namespace gradc
