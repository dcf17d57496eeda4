#include "capture/csrc/engine_run.h"

#include "capture/csrc/run_node.h"
#include "nodes/csrc/segment_node.h"

#include <ATen/TensorSubclassLikeUtils.h>
#include <ATen/CachedTensorUtils.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/csrc/utils/torch_dispatch_mode.h>

#include <algorithm>
#include <iterator>

namespace gradc {

using torch::autograd::AccumulateGrad;

namespace {

const void* storage_of(const at::Tensor& tensor) {
  return tensor.has_storage() ? static_cast<const void*>(tensor.storage().unsafeGetStorageImpl()) : nullptr;
}

// at::isTensorSubclassLike says yes to every tensor while a mode records.
bool is_subclass(const at::Tensor& tensor, bool is_traced) {
  return tensor.key_set().has_any(at::kFunctorchWrappedTensors) ||
      (!is_traced && tensor.key_set().has(c10::DispatchKey::Python)); // a fake tensor stands for a plain one
}

// As can_accumulate_inplace in torch's input_buffer.cpp, but for who holds the tensor.
bool is_plain_buffer(const at::Tensor& tensor, bool is_traced) {
  return !is_subclass(tensor, is_traced) && !tensor._is_zerotensor() && !tensor.is_nested() &&
      tensor.is_non_overlapping_and_dense() && tensor.has_storage();
}

// Who holds the tensor, in C++ and in Python. Its Python object holds it, too, and is held by it.
size_t num_holders(const at::Tensor& tensor) {
  const size_t count = tensor.use_count();
  PyObject* object = tensor.unsafeGetTensorImpl()->pyobj_slot()->load_pyobj();
  return object ? count - 1 + (*c10::impl::getGlobalPyInterpreter())->refcnt(object) - 1 : count;
}

const void* impl_of(const at::Tensor& tensor) {
  return tensor.unsafeGetTensorImpl();
}

// How many of the values have the tensor's `of`: its memory, or what it is itself.
template <class Of>
size_t num_among(const variable_list& values, const at::Tensor& tensor, const Of& of) {
  return std::count_if(values.begin(), values.end(), [&](const at::Tensor& value) {
    return value.defined() && of(value) == of(tensor);
  });
}

} // namespace

EngineRun::EngineRun(Walk& walk, Observer* observer, const StandIns* stand_ins)
    : walk_(walk),
      observer_(observer),
      stand_ins_(stand_ins),
      tensors_(stand_ins ? stand_ins->tensors : walk.tensors),
      dependencies_(walk.nodes.size()),
      not_ready_(walk.nodes.size()),
      results_(walk.request.is_partial && !walk.request.accumulates ? walk.request.outputs.size() : 0) {
  for (const auto& live : walk.nodes) {
    for (const auto& edge : live.node->next_edges()) {
      if (edge.is_valid()) {
        ++dependencies_[walk_.index_of(edge.function.get())];
      }
    }
  }
}

variable_list EngineRun::run() {
  if (!observer_) {
    start();
    return loop();
  }
  mark_external(tensors_);
  observer_->begin();
  try {
    start();
    auto results = loop();
    observer_->end();
    return results;
  } catch (python_error& error) {
    error.persist(); // before more Python runs
    observer_->end();
    throw;
  } catch (...) {
    observer_->end();
    throw;
  }
}

variable_list EngineRun::as_returned(variable_list results) const {
  for (auto& result : results) {
    const auto found = returned_.find(result.unsafeGetTensorImpl());
    if (result.defined() && found != returned_.end()) {
      result = found->second;
    }
  }
  return results;
}

// As the engine: one root is the first task; several hang under a node that sends them.
void EngineRun::start() {
  const auto& roots = walk_.request.roots;
  auto grads = walk_.request.grads;
  const auto plain = [](const std::string& message) { return message; };
  if (stand_ins_) {
    for (auto& grad : grads) {
      grad = stand_ins_->tensors.at(walk_.tensor_index(grad));
    }
    torch::autograd::validate_outputs(traced_metadata(roots), grads, plain);
  } else {
    torch::autograd::validate_outputs(roots, grads, plain);
  }
  if (roots.size() == 1) {
    variable_list inputs(roots[0].function->num_inputs());
    inputs[roots[0].input_nr] = std::move(grads[0]);
    push(walk_.index_of(roots[0].function.get()), std::move(inputs));
    return;
  }
  for (const auto& root : roots) {
    ++dependencies_[walk_.index_of(root.function.get())];
  }
  for (size_t i = 0; i < roots.size(); ++i) {
    receive(roots[i], std::move(grads[i]));
  }
}

variable_list EngineRun::resume(const Snapshot<at::Tensor>& state, uint32_t node, variable_list outputs) {
  for (const auto index : state.done) {
    if (index == node) {
      continue; // its edges are followed below
    }
    for (const auto& edge : walk_.nodes[index].node->next_edges()) {
      if (edge.is_valid()) {
        --dependencies_[walk_.index_of(edge.function.get())];
      }
    }
  }
  for (const auto& waiting : state.not_ready) {
    not_ready_[waiting.node] = waiting.inputs;
  }
  for (const auto& waiting : state.ready) {
    ready_.push_back({walk_.nodes[waiting.node].node->sequence_nr(), waiting.node, waiting.inputs});
  }
  results_ = state.results;
  done_ = state.done;
  send(node, std::move(outputs));
  return loop();
}

variable_list EngineRun::loop() {
  while (!ready_.empty()) {
    std::pop_heap(ready_.begin(), ready_.end());
    Task task = std::move(ready_.back());
    ready_.pop_back();
    evaluate(task.node, std::move(task.inputs));
  }
  return std::move(results_);
}

// As Engine::evaluate_function.
void EngineRun::evaluate(uint32_t node, variable_list inputs) {
  auto& live = walk_.nodes[node];
  done_.push_back(node);
  for (const auto& [position, number] : live.captures) {
    results_[number] = inputs[position];
  }
  if (!live.is_needed) {
    return; // asked for, and no hooks: the walk refuses those
  }
  send(node, call(node, std::move(inputs)));
}

variable_list EngineRun::call(uint32_t node, variable_list inputs) {
  auto& live = walk_.nodes[node];
  const bool keep_graph = walk_.request.keep_graph;
  if (!observer_) {
    auto outputs = run_node(*live.node, std::move(inputs), keep_graph);
    if (!keep_graph) {
      live.node->release_variables();
    }
    return outputs;
  }
  if (stand_ins_) {
    return trace(node, std::move(inputs));
  }
  if (live.accumulate && !live.is_opaque) {
    accumulate_grad(node, std::move(inputs));
    return {};
  }
  if (live.is_opaque || has_hooks(*live.node)) {
    return call_live(node, std::move(inputs));
  }
  const variable_list held = inputs;
  observer_->enter(node, inputs);
  auto outputs = run_node(*live.node, std::move(inputs), keep_graph);
  if (!keep_graph) {
    live.node->release_variables();
  }
  if (observer_->leave(node, outputs)) {
    mark_live(held);
    mark_live(outputs);
    observer_->snapshot(snapshot());
  }
  return outputs;
}

// Runs a node outside the recording. What it returns gets new handles, since a hook may return what it was given: on the
// next run it may return something else.
variable_list EngineRun::call_live(uint32_t node, variable_list inputs) {
  auto& live = walk_.nodes[node];
  const variable_list held = inputs;
  std::unordered_map<const void*, size_t> holders;
  for (const auto& input : held) {
    holders.emplace(impl_of(input), input.defined() ? num_holders(input) : 0);
  }
  const auto is_input_owned = owned_among(held);
  variable_list outputs;
  {
    const torch::torch_dispatch_mode::StashTorchDispatchModeGuard no_recording;
    if (live.accumulate && inputs.at(0).defined() && is_free(inputs[0])) {
      inputs[0] = inputs[0].variable_data(); // a handle that only the leaf has: without the recording, it would steal
    }
    outputs = run_node(*live.node, std::move(inputs), walk_.request.keep_graph, is_input_owned);
    if (!walk_.request.keep_graph) {
      live.node->release_variables();
    }
    for (const auto& input : held) {
      const size_t let_go = num_among(held, input, impl_of), handed_on = num_among(outputs, input, impl_of);
      if (input.defined() && num_holders(input) + let_go > holders[impl_of(input)] + handed_on) {
        held_values_.insert(original_of(input)); // a hook keeps it
      }
    }
    struct Returned {
      bool is_free, is_owned;
      size_t first; // the node may return one tensor several times
    };
    std::vector<Returned> returned;
    for (const auto& output : outputs) {
      const bool is_output_free = holders.count(impl_of(output))
          ? is_free(output)
          : torch::autograd::impl::is_tensor_stealable(output, num_among(outputs, output, impl_of));
      const auto is_it = [&](const at::Tensor& other) { return other.is_same(output); };
      const size_t first = std::find_if(outputs.begin(), outputs.end(), is_it) - outputs.begin();
      returned.push_back({is_output_free, is_output_free && output.has_storage() && output.storage().use_count() == 1, first});
    }
    for (size_t i = 0; i < outputs.size(); ++i) {
      auto& output = outputs[i];
      if (output.defined()) {
        const at::Tensor handle = output.variable_data();
        if (!walk_.nodes[node].accumulate && walk_.request.is_partial) {
          returned_.emplace(impl_of(handle), output);
        }
        output = handle;
        if (returned[i].first < i) {
          twins_.emplace(impl_of(output), impl_of(outputs[returned[i].first]));
        }
        if (!returned[i].is_free) {
          held_values_.insert(original_of(output));
        }
        if (returned[i].is_owned) {
          owned_values_.insert(impl_of(output));
        }
      }
    }
  }
  mark_live(held);
  mark_live(outputs);
  observer_->boundary(node, held, outputs, is_input_owned);
  observer_->snapshot(snapshot());
  return outputs;
}

// Whether only the recording and the run hold a tensor, and that once.
bool EngineRun::is_free(const at::Tensor& tensor) const {
  return !held_values_.count(original_of(tensor)) && !is_held_elsewhere(tensor, false);
}

// Whether, but for the recording, each input of a node is held by nobody else, nor its memory.
std::vector<bool> EngineRun::owned_among(const variable_list& inputs) const {
  std::vector<bool> is_owned;
  for (const auto& input : inputs) {
    const bool is_alone = input.defined() && !input.is_view() && !held_values_.count(original_of(input)) && !is_walked(input) &&
        (owned_values_.count(impl_of(input)) || !external_storages_.count(storage_of(input)));
    is_owned.push_back(is_alone && num_waiting(input, true) + num_among(inputs, input, storage_of) == 1);
  }
  return is_owned;
}

// As AccumulateGrad::apply, with the recording's references left out of account when a gradient may be stolen.
void EngineRun::accumulate_grad(uint32_t node, variable_list inputs) {
  auto& live = walk_.nodes[node];
  auto& variable = live.accumulate->variable;
  const at::Tensor& new_grad = inputs.at(0);
  if (!new_grad.defined()) {
    return;
  }
  at::Tensor& grad = variable.mutable_grad();
  const bool is_as_walked = live.grad >= 0 ? grad.is_same(tensors_[live.grad]) : !grad.defined();
  if (!is_as_walked || has_hooks(*live.node) || live_values_.count(impl_of(new_grad)) || new_grad.layout() != at::kStrided) {
    call_live(node, std::move(inputs));
    return;
  }
  const bool is_stealable = !is_held_elsewhere(new_grad, false);
  observer_->enter(node, inputs);
  AccumulateGrad::accumulateGrad(variable, grad, new_grad, is_stealable ? SIZE_MAX / 2 : 0, [&grad](at::Tensor&& update) {
    grad = std::move(update);
  });
  if (live.grad < 0) {
    observer_->accumulated(node, grad);
  }
  observer_->leave(node, {});
}

void EngineRun::send(uint32_t from, variable_list outputs) {
  const auto& edges = walk_.nodes[from].node->next_edges();
  in_flight_ = &outputs;
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (edges[i].is_valid()) {
      receive(edges[i], std::move(outputs[i]));
    }
  }
  in_flight_ = nullptr;
}

void EngineRun::receive(const Edge& edge, at::Tensor value) {
  const auto node = static_cast<uint32_t>(walk_.index_of(edge.function.get()));
  const bool is_ready = --dependencies_[node] == 0;
  auto& waiting = not_ready_[node];
  if (!waiting) {
    if (!walk_.nodes[node].is_run()) {
      return;
    }
    waiting.emplace(edge.function->num_inputs());
  }
  add(*waiting, edge.input_nr, std::move(value));
  if (is_ready) {
    variable_list inputs = std::move(*waiting);
    waiting.reset();
    push(node, std::move(inputs));
  }
}

// As InputBuffer::add and accumulate in torch's input_buffer.cpp.
void EngineRun::add(variable_list& buffer, size_t position, at::Tensor value) {
  if (!value.defined()) {
    return;
  }
  auto& old = buffer[position];
  if (!old.defined()) {
    old = std::move(value);
    return;
  }
  if (old.is_sparse() || old.is_sparse_csr()) {
    const bool in_place = may_add_in_place(value, old) && is_plain_buffer(value, stand_ins_);
    old = in_place ? value.add_(old) : value + old;
  } else if (may_add_in_place(old, value) && is_plain_buffer(old, stand_ins_) && !is_subclass(value, stand_ins_)) {
    old.add_(value);
  } else if (keeps_strides(old, value)) {
    old = old.clone();
    old.add_(value);
  } else {
    old = old + value;
  }
}

// Whether nobody but a buffer holds the tensor and its memory. While recording, the recording's own references do not count.
bool EngineRun::may_add_in_place(const at::Tensor& tensor, const at::Tensor& other) const {
  if (!observer_) {
    return may_write_over(tensor, 1 + at::caching::is_cached_tensor(tensor));
  }
  // A view holds its base, and so another reference to its memory.
  return !tensor.is_view() && storage_of(tensor) != storage_of(other) && !is_held_elsewhere(tensor, true);
}

// Whether eager adds in place to what a boundary returned, and so leaves strides that a sum would not have, in dimensions of
// size 1. On another run a hook may keep the tensor: so the recording copies it first.
bool EngineRun::keeps_strides(const at::Tensor& tensor, const at::Tensor& other) const {
  if (!observer_ || stand_ins_ || !owned_values_.count(tensor.unsafeGetTensorImpl()) || !is_plain_buffer(tensor, false) ||
      is_subclass(other, false) || other.layout() != at::kStrided || storage_of(tensor) == storage_of(other) ||
      held_values_.count(original_of(tensor)) || num_waiting(tensor, true) > 1) { // a hook keeps it, or it goes elsewhere, too
    return false;
  }
  const bool is_usual = tensor.strides() == other.strides() && tensor.strides() == c10::contiguous_strides(tensor.sizes());
  return !is_usual && std::any_of(tensor.sizes().begin(), tensor.sizes().end(), [](int64_t size) { return size == 1; });
}

bool EngineRun::is_held_elsewhere(const at::Tensor& tensor, bool by_storage) const {
  if (is_walked(tensor) || (by_storage && external_storages_.count(storage_of(tensor)))) {
    return true;
  }
  // An addition finds itself in a buffer, a leaf's gradient has left it.
  return num_waiting(tensor, by_storage) > (by_storage ? 1 : 0);
}

// What tells the tensor from others: its first handle, if a boundary returned it several times.
const void* EngineRun::original_of(const at::Tensor& tensor) const {
  const auto twin = twins_.find(impl_of(tensor));
  return twin == twins_.end() ? impl_of(tensor) : twin->second;
}

bool EngineRun::is_walked(const at::Tensor& tensor) const {
  return std::any_of(tensors_.begin(), tensors_.end(), [&](const at::Tensor& walked) { return walked.is_same(tensor); });
}

// How often the tensor, or its memory, is among what waits for nodes to run.
size_t EngineRun::num_waiting(const at::Tensor& tensor, bool by_storage) const {
  const auto of = [&](const at::Tensor& value) { return by_storage ? storage_of(value) : original_of(value); };
  size_t count = num_among(results_, tensor, of);
  for (const auto& task : ready_) {
    count += num_among(task.inputs, tensor, of);
  }
  for (const auto& waiting : not_ready_) {
    count += waiting ? num_among(*waiting, tensor, of) : 0;
  }
  return in_flight_ ? count + num_among(*in_flight_, tensor, of) : count;
}

void EngineRun::mark_external(const variable_list& tensors) {
  for (const auto& tensor : tensors) {
    if (tensor.defined()) {
      external_storages_.insert(storage_of(tensor));
    }
  }
}

// What a boundary was given, or has made.
void EngineRun::mark_live(const variable_list& tensors) {
  mark_external(tensors);
  std::transform(tensors.begin(), tensors.end(), std::inserter(live_values_, live_values_.end()), impl_of);
}

void EngineRun::push(uint32_t node, variable_list inputs) {
  ready_.push_back({walk_.nodes[node].node->sequence_nr(), node, std::move(inputs)});
  std::push_heap(ready_.begin(), ready_.end());
}

Snapshot<at::Tensor> EngineRun::snapshot() const {
  Snapshot<at::Tensor> state;
  state.done = done_;
  for (uint32_t node = 0; node < not_ready_.size(); ++node) {
    if (not_ready_[node]) {
      state.not_ready.push_back({node, *not_ready_[node]});
    }
  }
  for (const auto& task : ready_) {
    state.ready.push_back({task.node, task.inputs});
  }
  state.results = results_;
  return state;
}

} // namespace gradc
