#include "nodes/csrc/segment_node.h"

#include "csrc/ambient.h"
#include "csrc/autograd.h"
#include "csrc/torch_internals.h"
#include "nodes/csrc/accumulate.h"

#include <ATen/SavedTensorHooks.h>
#include <ATen/autocast_mode.h>
#include <c10/util/ScopeExit.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/csrc/utils/pybind.h>

#include <algorithm>
#include <atomic>
#include <set>

namespace gradc {

using torch::autograd::Edge;
using torch::autograd::SavedVariable;
using torch::autograd::Variable;
using torch::autograd::variable_list;

namespace {

constexpr c10::DispatchKeySet lazy_or_wrapped({
    c10::DispatchKey::Python,
    c10::DispatchKey::Conjugate,
    c10::DispatchKey::Negative,
    c10::DispatchKey::ZeroTensor,
    c10::DispatchKey::FuncTorchBatched,
    c10::DispatchKey::FuncTorchGradWrapper,
    c10::DispatchKey::Batched,
});

bool is_plain(const at::Tensor& tensor) {
  return tensor.layout() == at::kStrided && !tensor.is_nested() && !tensor.key_set().has_any(lazy_or_wrapped) &&
      !tensor._fw_grad(0).defined();
}

// A view made under no_grad of what requires a gradient: it requires one, too, but gradients go nowhere from it.
bool is_cut_off(const at::Tensor& tensor) {
  const auto* meta = torch::autograd::impl::get_autograd_meta(tensor);
  return meta && !meta->requires_grad_ && !meta->grad_fn_ && tensor.requires_grad() && tensor.is_leaf();
}

void add_tangent(Key& key, const at::Tensor& tangent) {
  if (!tangent.defined()) {
    key.push_back(-1);
    return;
  }
  key.push_back(tangent.dim());
  key.push_back(static_cast<int64_t>(tangent.scalar_type()));
  key.push_back(static_cast<int64_t>(tangent.device().type()) << 8 | (tangent.device().index() & 0xff));
  key.insert(key.end(), tangent.sizes().begin(), tangent.sizes().end());
  key.insert(key.end(), tangent.strides().begin(), tangent.strides().end());
}

Key make_key(const Key& forced_autocast, const variable_list& tangents, const std::vector<bool>& needed) {
  Key key = forced_autocast;
  key.reserve(16 + 8 * tangents.size() + needed.size());
  const auto ambient = Ambient::read();
  if (forced_autocast.empty()) {
    key.insert(key.end(), ambient.autocast.begin(), ambient.autocast.end());
  }
  const auto modes = ambient.modes();
  key.insert(key.end(), modes.begin(), modes.end());
  for (const bool bit : needed) {
    key.push_back(bit);
  }
  for (const auto& tangent : tangents) {
    add_tangent(key, tangent);
  }
  return key;
}

// Whether it tells if a sum is written over the tensor: it then keeps strides that a new sum would not have, those of dimensions
// of size 1, or of an empty tensor.
bool has_free_strides(const at::Tensor& tensor) {
  const auto sizes = tensor.sizes();
  const bool has_none_or_one = std::any_of(sizes.begin(), sizes.end(), [](int64_t size) { return size <= 1; });
  return has_none_or_one && tensor.strides() != c10::contiguous_strides(sizes);
}

std::vector<int64_t> read_symbols(const std::vector<SymbolSource>& sources, const std::vector<c10::IValue>& primals) {
  std::vector<int64_t> values;
  values.reserve(sources.size());
  for (const auto& source : sources) {
    const auto& primal = primals[source.slot];
    switch (source.kind) {
      case SymbolSource::Kind::integer:
        values.push_back(primal.toInt());
        break;
      case SymbolSource::Kind::size:
        values.push_back(primal.toTensor().size(source.dimension));
        break;
      case SymbolSource::Kind::stride:
        values.push_back(primal.toTensor().stride(source.dimension));
        break;
    }
  }
  return values;
}

std::vector<c10::IValue> run_without_gil(const Plan& plan, std::vector<c10::IValue> inputs) {
  const pybind11::gil_scoped_release no_gil;
  return run(plan, std::move(inputs));
}

void add_edges(SegmentNode& node, const Nodes& nodes, const std::vector<c10::IValue>& primals) {
  torch::autograd::edge_list edges;
  edges.reserve(node.layout().exits.size());
  for (const auto& exit : node.layout().exits) {
    if (exit.primal >= 0) {
      edges.push_back(torch::autograd::impl::gradient_edge(primals[exit.primal].toTensor()));
    } else {
      edges.emplace_back(nodes[exit.segment], static_cast<uint32_t>(exit.entry));
    }
  }
  node.set_next_edges(std::move(edges));
}

void set_edges_of_values(const c10::intrusive_ptr<SegmentNode>& node, const std::vector<c10::IValue>& values) {
  const auto& entries = node->layout().entries;
  for (size_t number = 0; number < entries.size(); ++number) {
    if (entries[number].value >= 0) {
      torch::autograd::impl::set_gradient_edge(values[entries[number].value].toTensor(), Edge(node, number));
    }
  }
}

void save_tensors(SegmentNode& node, size_t number, const std::vector<c10::IValue>& primals, const std::vector<c10::IValue>& values) {
  std::vector<SavedVariable> saved;
  variable_list kept;
  saved.reserve(node.layout().saved.size());
  for (const auto& source : node.layout().saved) {
    const auto& tensor = (source.is_primal ? primals : values)[source.position].toTensor();
    if (source.is_kept) {
      kept.resize(node.layout().saved.size());
      kept[saved.size()] = tensor;
      saved.emplace_back();
    } else {
      saved.emplace_back(tensor, !source.is_primal && source.owner == static_cast<int64_t>(number));
    }
  }
  node.save(std::move(saved), std::move(kept), at::SavedTensorDefaultHooks::get_hooks().has_value());
}

} // namespace

size_t KeyHash::operator()(const Key& key) const noexcept {
  size_t hash = key.size();
  for (const auto part : key) {
    hash ^= std::hash<int64_t>()(part) + 0x9e3779b97f4a7c15ULL + (hash << 6) + (hash >> 2);
  }
  return hash;
}

BackwardCache::Found BackwardCache::find(const Key& key) const {
  const std::lock_guard lock(mutex_);
  const auto found = known_.find(key);
  return found == known_.end() ? Found{} : Found{true, found->second};
}

void BackwardCache::keep(Key key, std::shared_ptr<const CompiledBackward> backward) {
  decltype(known_) dropped; // without the lock: it takes the GIL, which a thread that waits for the lock may hold
  const std::lock_guard lock(mutex_);
  if (known_.size() >= kept) {
    known_.swap(dropped);
  }
  known_.emplace(std::move(key), std::move(backward));
}

void SegmentNode::save(std::vector<SavedVariable> saved, variable_list kept, bool is_repacked) {
  saved_ = std::move(saved);
  kept_ = std::move(kept);
  is_released_.assign(saved_.size(), false);
  is_repacked_ = is_repacked;
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

namespace {

// The wrapper of ours around a hook, put where the hook stands if it is not there yet.
template <typename Wrapper, typename... Arguments>
Wrapper& wrap(std::unique_ptr<torch::autograd::FunctionPreHook>& hook, const Arguments&... arguments) {
  using Hook = torch::autograd::FunctionPreHook;
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  if (auto* wrapper = dynamic_cast<Wrapper*>(hook.get())) {
    return *wrapper;
  }
  auto* wrapper = new Wrapper(std::unique_ptr<Hook>(hook.get()), arguments...);
  put_around(hook, wrapper);
  return *wrapper;
}

// A hook of an output. In eager the output's node does not run if gradients come in for what was saved before it only.
class OutputHook : public torch::autograd::FunctionPreHook {
 public:
  OutputHook(std::unique_ptr<FunctionPreHook> hook, const SegmentNode& node)
      : hook_(std::move(hook)), node_(node), output_(output_of(*hook_)) {}

  variable_list operator()(const variable_list& grads) override {
    const bool is_passed = output_ && node_.is_entered_inside() && !grads.at(*output_).defined();
    return is_passed ? grads : (*hook_)(grads);
  }

  void compiled_args(torch::dynamo::autograd::CompiledNodeArgs& args) const override {
    hook_->compiled_args(args);
  }

 private:
  std::unique_ptr<FunctionPreHook> hook_;
  const SegmentNode& node_;
  std::optional<size_t> output_;
};

} // namespace

std::vector<std::unique_ptr<torch::autograd::FunctionPreHook>>& SegmentNode::tensor_pre_hooks() noexcept {
  auto& hooks = Node::tensor_pre_hooks();
  for (auto& hook : hooks) {
    wrap<OutputHook>(hook, *this);
  }
  return hooks;
}

// The engine calls this after each run without retain_graph. What that run read, `apply` has freed by then; what the nodes
// own that eager would not have run, stays.
void SegmentNode::release_variables() {}

void SegmentNode::release(const CompiledBackward& backward) {
  for (const auto position : backward.released) {
    saved_[position] = SavedVariable();
    is_released_[position] = true;
  }
  is_hidden_released_ = is_hidden_released_ || backward.frees_hidden;
}

bool SegmentNode::is_kept(size_t position) const {
  return !kept_.empty() && kept_[position].defined();
}

at::Tensor SegmentNode::unpack(size_t position) {
  return is_kept(position) ? kept_[position] : saved_[position].unpack(getptr());
}

void SegmentNode::release_all() {
  for (size_t position = 0; position < saved_.size(); ++position) {
    saved_[position] = SavedVariable();
    is_released_[position] = !is_kept(position);
  }
  is_hidden_released_ = layout().has_hidden_saves;
}

void SegmentNode::refuse_second_backward(const CompiledBackward& backward) const {
  bool is_freed = is_hidden_released_ && backward.frees_hidden;
  for (const auto position : backward.released) {
    is_freed = is_freed || is_released_[position];
  }
  TORCH_CHECK(!is_freed, torch::autograd::ERR_BACKWARD_TWICE);
}

namespace {

// A hook of a leaf. In eager nothing leads to the leaf from the values that were saved before it was used.
class LeafHook : public torch::autograd::FunctionPreHook {
 public:
  explicit LeafHook(std::unique_ptr<FunctionPreHook> hook)
      : hook_(std::move(hook)) {}

  variable_list operator()(const variable_list& grads) override {
    const bool is_passed = unreached_in_ == torch::autograd::get_current_graph_task_id() && !grads.at(0).defined();
    return is_passed ? grads : (*hook_)(grads);
  }

  void compiled_args(torch::dynamo::autograd::CompiledNodeArgs& args) const override {
    hook_->compiled_args(args);
  }

  // In this backward pass the hook is not called for the want of a gradient.
  void pass_over() {
    unreached_in_ = torch::autograd::get_current_graph_task_id();
  }

 private:
  std::unique_ptr<FunctionPreHook> hook_;
  std::atomic<int> unreached_in_{-1};
};

} // namespace

variable_list SegmentNode::apply(variable_list&& tangents) {
  const std::lock_guard lock(mutex_);
  show_hidden_edges();
  const bool is_compilable = !at::GradMode::is_enabled() && is_usual(tangents);
  auto grads = gradients(std::move(tangents), is_compilable);
  if (is_entered_inside()) {
    pass_over_hooks_of_unreached_leaves(grads);
  }
  if (is_compilable && !WalkedRun::of(*this) && !saved_.empty()) {
    accumulate_unwatched(*this, grads);
  }
  return grads;
}

void SegmentNode::pass_over_hooks_of_unreached_leaves(const variable_list& grads) const {
  for (size_t i = 0; i < grads.size(); ++i) {
    auto* leaf = dynamic_cast<torch::autograd::AccumulateGrad*>(next_edge(i).function.get());
    if (grads[i].defined() || !leaf) {
      continue;
    }
    for (auto& hook : leaf->tensor_pre_hooks()) {
      wrap<LeafHook>(hook).pass_over();
    }
  }
}

variable_list SegmentNode::gradients(variable_list&& tangents, bool is_compilable) {
  std::vector<bool> needed(num_outputs());
  for (size_t i = 0; i < needed.size(); ++i) {
    needed[i] = task_should_compute_output(i);
  }
  if (!is_compilable) {
    return derive(tangents, needed);
  }
  auto& cache = region_->backwards[number_];
  Key key = make_key(region_->forced_autocast, tangents, needed);
  const bool adds_up = may_add_up();
  key.push_back(adds_up);
  const auto owned = written_over(tangents);
  key.insert(key.end(), owned.begin(), owned.end());
  auto found = cache.find(key);
  if (!found.is_known) {
    found.backward = region_->derive->compile(number_, tangents, needed, adds_up, owned);
    cache.keep(std::move(key), found.backward);
  }
  return found.backward ? replay(*found.backward, std::move(tangents)) : derive(tangents, needed);
}

// Whether what was compiled for a key may serve: nothing that a key does not tell.
bool SegmentNode::is_usual(const variable_list& tangents) const {
  return !is_repacked_ && unsupported_mode().empty() && std::all_of(tangents.begin(), tangents.end(), [](const at::Tensor& tangent) {
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
  const size_t by_engine = post_hooks().empty() ? 1 : 2;
  const auto* walked = WalkedRun::of(*this);
  std::vector<int64_t> positions;
  for (size_t i = 0; i < tangents.size(); ++i) {
    const auto& tangent = tangents[i];
    if (tangent.defined() && is_plain(tangent) && has_free_strides(tangent)) {
      if (walked && !walked->is_owned().empty() ? walked->is_owned()[i] : may_write_over(tangent, by_engine)) {
        positions.push_back(static_cast<int64_t>(i));
      }
    }
  }
  return positions;
}

variable_list SegmentNode::replay(const CompiledBackward& backward, variable_list&& tangents) {
  refuse_second_backward(backward);
  std::vector<c10::IValue> inputs;
  inputs.reserve(tangents.size() + backward.saved.size() + symbols_.size());
  for (auto& tangent : tangents) {
    if (tangent.defined()) {
      inputs.emplace_back(std::move(tangent));
    }
  }
  for (const auto position : backward.saved) {
    inputs.emplace_back(unpack(position));
  }
  for (const auto position : backward.unread) {
    unpack(position);
  }
  for (const auto symbol : symbols_) {
    inputs.emplace_back(symbol);
  }
  if (!torch::autograd::get_current_graph_task_keep_graph()) {
    release(backward); // what the plan has read for the last time dies while it runs, as it does in eager
  }
  auto results = run(*backward.plan, std::move(inputs));
  variable_list grads;
  grads.reserve(results.size());
  for (auto& result : results) {
    at::Tensor grad = result.isTensor() ? std::move(result).toTensor() : at::Tensor();
    grads.push_back(grad.defined() && grad.requires_grad() ? grad.detach() : std::move(grad));
  }
  for (const auto position : backward.views) {
    grads[position] = at::alias(grads[position]);
  }
  return grads;
}

// Under create_graph the saved values become inputs of a graph that leads back to the nodes that made them.
variable_list SegmentNode::derive(const variable_list& tangents, const std::vector<bool>& needed) {
  const bool is_freed =
      is_hidden_released_ || std::find(is_released_.begin(), is_released_.end(), true) != is_released_.end();
  TORCH_CHECK(!is_freed, torch::autograd::ERR_BACKWARD_TWICE);
  variable_list saved;
  saved.reserve(saved_.size());
  for (size_t position = 0; position < saved_.size(); ++position) {
    saved.push_back(unpack(position));
    if (auto* owner = dynamic_cast<SegmentNode*>(saved.back().grad_fn().get()); owner && at::GradMode::is_enabled()) {
      owner->show_entries(owner->layout().entries.size());
    }
  }
  if (!torch::autograd::get_current_graph_task_keep_graph()) {
    release_all();
  }
  const auto owned = written_over(tangents);
  variable_list all = tangents;
  if (at::GradMode::is_enabled()) {
    take_sums(all, needed);
  }
  if (auto grads = differentiate(saved, all, needed)) {
    return *std::move(grads);
  }
  return region_->derive->grads(number_, symbols_, saved, all, needed, is_repacked_, owned);
}

// Appends to the tangents what each target has got so far, taken out of the engine's buffers. Under create_graph the engine
// adds up with nodes of its own. In eager they stand between those of the formulas, and the next order goes through all of them
// in that order: so the segment adds up itself, and sends the sum along the first exit to each target.
void SegmentNode::take_sums(variable_list& tangents, const std::vector<bool>& needed) const {
  const auto is_elsewhere = [](const at::Tensor& tangent) { return tangent.defined() && !tangent.device().is_cpu(); };
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
  if (!at::GradMode::is_enabled() || !region_->forced_autocast.empty() || !is_usual(tangents)) {
    return std::nullopt;
  }
  Key key = make_key(region_->forced_autocast, tangents, needed);
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

bool is_watched(const std::vector<c10::IValue>& primals) {
  return !unsupported_mode().empty() || at::SavedTensorDefaultHooks::get_hooks().has_value() ||
      std::any_of(primals.begin(), primals.end(), [](const c10::IValue& primal) {
           return primal.isTensor() && (!is_plain(primal.toTensor()) || is_cut_off(primal.toTensor()));
         });
}

at::Tensor cached_cast(const at::Tensor& leaf, c10::ScalarType dtype) {
  const auto device = leaf.device().type();
  const auto ambient = at::autocast::get_autocast_dtype(device);
  at::autocast::set_autocast_dtype(device, dtype);
  const auto restore = c10::make_scope_exit([&] { at::autocast::set_autocast_dtype(device, ambient); });
  return at::autocast::cached_cast(dtype, leaf, device);
}

bool is_autocast_nested() {
  at::autocast::increment_nesting();
  return at::autocast::decrement_nesting() > 0;
}

bool has_gradient_hooks(const std::vector<c10::IValue>& primals) {
  for (const auto& primal : primals) {
    if (!primal.isTensor() || !primal.toTensor().requires_grad() || !primal.toTensor().is_leaf()) {
      continue;
    }
    const auto& tensor = primal.toTensor();
    if (!torch::autograd::impl::hooks(tensor).empty() || torch::autograd::impl::post_acc_grad_hooks(tensor)) {
      return true;
    }
    const auto accumulator = torch::autograd::impl::try_get_grad_accumulator(tensor);
    if (accumulator && (!accumulator->post_hooks().empty() || !accumulator->pre_hooks().empty())) {
      return true;
    }
  }
  return false;
}

Called call_region(
    const std::shared_ptr<const RegionLayout>& region,
    const std::vector<c10::IValue>& primals,
    const std::vector<int64_t>& shapes) {
  auto values = run_without_gil(*region->forward, primals);
  Nodes nodes;
  nodes.reserve(region->segments.size());
  const auto symbols = read_symbols(region->symbols, primals);
  for (size_t number = 0; number < region->segments.size(); ++number) {
    auto node = c10::make_intrusive<SegmentNode>(region, number, symbols, shapes);
    add_edges(*node, nodes, primals);
    node->show_entries(node->layout().num_tangents);
    set_edges_of_values(node, values);
    save_tensors(*node, number, primals, values);
    nodes.push_back(std::move(node));
  }
  return {std::move(values), std::move(nodes)};
}

Nodes made_nodes(const RegionLayout& region, const std::vector<c10::IValue>& primals) {
  Nodes nodes;
  nodes.reserve(region.live_order.size());
  for (const auto& [kind, number, depth] : region.live_order) {
    nodes.push_back(kind == MadeNode::Kind::primal ? primals[number].toTensor().grad_fn() : nullptr);
  }
  return nodes;
}

void put_in_order(
    const RegionLayout& region, const Nodes& made, const Nodes& segments, const variable_list& outputs, uint64_t start) {
  Nodes nodes;
  std::vector<uint64_t> numbers;
  for (size_t i = 0; i < made.size(); ++i) {
    const auto [kind, number, depth] = region.live_order[i];
    auto node = kind == MadeNode::Kind::primal ? made[i]
        : kind == MadeNode::Kind::segment      ? segments[number]
                                               : outputs[number].grad_fn();
    for (size_t up = 0; kind == MadeNode::Kind::output && node && up < depth; ++up) {
      node = node->next_edge(0).function;
    }
    if (node && node->sequence_nr() >= start) { // autocast's cache gives out older ones
      numbers.push_back(node->sequence_nr());
      nodes.push_back(std::move(node));
    }
  }
  std::sort(numbers.begin(), numbers.end());
  for (size_t i = 0; i < nodes.size(); ++i) {
    nodes[i]->set_sequence_nr(numbers[i]);
  }
}

} // namespace gradc
