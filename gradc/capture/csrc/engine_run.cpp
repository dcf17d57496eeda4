#include "capture/csrc/engine_run.h"

#include "capture/csrc/run_node.h"
#include "csrc/autograd.h"

#include <ATen/TensorSubclassLikeUtils.h>
#include <ATen/CachedTensorUtils.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/csrc/utils/torch_dispatch_mode.h>

#include <algorithm>
#include <iterator>
#include <tuple>
#include <utility>

namespace gradc {

using torch::autograd::AccumulateGrad;

namespace {

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

// Whether a fresh contiguous tensor of these sizes has these strides, also in dimensions of size 1.
bool is_laid_out_afresh(c10::SymIntArrayRef sizes, c10::SymIntArrayRef strides) {
  c10::SymInt expected = 1;
  for (size_t i = sizes.size(); i-- > 0;) {
    if (strides[i] != expected) {
      return false;
    }
    expected *= sizes[i] == 0 ? c10::SymInt(1) : sizes[i];
  }
  return true;
}

} // namespace

EngineRun::EngineRun(Walk& walk, Observer* observer, const StandIns* stand_ins)
    : walk_(walk),
      observer_(observer),
      stand_ins_(stand_ins),
      tensors_(stand_ins ? stand_ins->tensors : walk.tensors),
      holders_(tensors_, [this] { return waiting(); }),
      dependencies_(walk.nodes.size()),
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

variable_list EngineRun::resume(
    const std::vector<uint32_t>& done, Snapshot<at::Tensor> state, uint32_t node, variable_list outputs) {
  for (const auto index : done) {
    if (index == node) {
      continue; // its edges are followed below
    }
    for (const auto& edge : walk_.nodes[index].node->next_edges()) {
      if (edge.is_valid()) {
        --dependencies_[walk_.index_of(edge.function.get())];
      }
    }
  }
  for (auto& waiting : state.not_ready) {
    not_ready_.emplace(waiting.node, std::move(waiting.inputs));
  }
  for (auto& waiting : state.ready) {
    ready_.push_back({walk_.nodes[waiting.node].node->sequence_nr(), waiting.node, std::move(waiting.inputs)});
  }
  results_ = std::move(state.results);
  if (walk_.nodes[node].is_needed) {
    send(node, std::move(outputs));
  } else {
    keep_results(node, outputs);
  }
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
  newly_done_.push_back(node);
  if (live.is_needed) {
    keep_results(node, inputs);
    send(node, call(node, std::move(inputs)));
  } else {
    keep_results(node, has_hooks(*live.node) ? ask_hooks(node, std::move(inputs)) : inputs);
  }
}

// What is asked for of a node that runs is what it is given, before its hooks.
void EngineRun::keep_results(uint32_t node, const variable_list& values) {
  for (const auto& [position, number] : walk_.nodes[node].captures) {
    results_[number] = values[position];
  }
}

variable_list EngineRun::ask_hooks(uint32_t node, variable_list inputs) {
  if (!observer_) {
    return call_hooks_alone(*walk_.nodes[node].node, std::move(inputs));
  }
  return stand_ins_ ? trace(node, std::move(inputs)) : call_boundary(node, std::move(inputs));
}

variable_list EngineRun::call(uint32_t node, variable_list inputs) {
  auto& live = walk_.nodes[node];
  if (!observer_) {
    return run_and_release(node, std::move(inputs));
  }
  if (stand_ins_) {
    return trace(node, std::move(inputs));
  }
  if (live.accumulate && !live.is_opaque) {
    accumulate_grad(node, std::move(inputs));
    return {};
  }
  if (live.is_opaque || has_hooks(*live.node)) {
    return call_boundary(node, std::move(inputs));
  }
  const variable_list held = inputs;
  observer_->enter(node, inputs);
  auto outputs = run_and_release(node, std::move(inputs));
  if (observer_->leave(node, outputs)) {
    holders_.note_given(held);
    holders_.note(outputs);
    observer_->snapshot(snapshot());
  }
  return outputs;
}

// Runs a node outside the recording.
variable_list EngineRun::call_boundary(uint32_t node, variable_list inputs) {
  const variable_list held = std::move(inputs);
  const auto are_stealable = holders_.stealable_among(held);
  variable_list outputs;
  std::vector<bool> are_kept;
  observer_->pause();
  {
    const torch::torch_dispatch_mode::StashTorchDispatchModeGuard no_recording;
    std::tie(outputs, are_kept) = call_on_returned(node, held, are_stealable);
    outputs = holders_.note_returned(held, are_stealable, std::move(outputs));
  }
  observer_->boundary(node, {held, outputs, are_stealable, are_kept, holders_.stealable_among_returned(outputs)});
  observer_->snapshot(snapshot());
  return outputs;
}

// Nodes and hooks see, and may keep, the very tensors that a boundary returned, as what is asked for is given out.
std::pair<variable_list, std::vector<bool>> EngineRun::call_on_returned(
    uint32_t node, const variable_list& held, std::vector<bool> are_stealable) {
  const auto& live = walk_.nodes[node];
  const variable_list given = holders_.as_returned(held);
  variable_list inputs = given;
  const auto before = Holders::count(given);
  if (live.is_needed && live.accumulate && inputs.at(0).defined() && holders_.is_held_once(held[0])) {
    inputs[0] = new_handle(inputs[0]); // a handle that only the leaf has: without the recording, it would steal
  }
  auto outputs = live.is_needed ? run_and_release(node, std::move(inputs), std::move(are_stealable))
                                : call_hooks_alone(*live.node, std::move(inputs));
  auto are_kept = Holders::kept_among(given, before, outputs);
  holders_.note_taken(given, are_kept);
  holders_.note_kept(held, given);
  for (size_t i = 0; i < outputs.size(); ++i) { // handed on, each keeps its handle: of several, the one in its place
    const auto is_it = [&](const at::Tensor& tensor) { return tensor.defined() && tensor.is_same(outputs[i]); };
    const bool is_in_place = i < given.size() && is_it(given[i]);
    const auto place = is_in_place ? given.begin() + i : std::find_if(given.begin(), given.end(), is_it);
    if (place != given.end()) {
      outputs[i] = held[place - given.begin()];
    }
  }
  return {std::move(outputs), std::move(are_kept)};
}

variable_list EngineRun::run_and_release(uint32_t node, variable_list inputs, std::vector<bool> are_stealable) {
  auto& live = *walk_.nodes[node].node;
  const bool keep_graph = walk_.request.keep_graph;
  auto outputs = run_node(live, std::move(inputs), keep_graph, std::move(are_stealable));
  if (!keep_graph) {
    live.release_variables();
  }
  return outputs;
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
  if (!is_as_walked || has_hooks(*live.node) || holders_.is_from_boundary(new_grad) || new_grad.layout() != at::kStrided) {
    call_boundary(node, std::move(inputs));
    return;
  }
  record_accumulation(node, inputs, variable, grad);
}

// torch counts the references to a gradient that it may steal: any number is few enough, or too many.
void EngineRun::record_accumulation(uint32_t node, const variable_list& inputs, const at::Tensor& variable, at::Tensor& grad) {
  const size_t num_allowed = holders_.is_held_once(inputs[0]) ? SIZE_MAX / 2 : 0;
  const bool had_grad = grad.defined();
  observer_->enter(node, inputs);
  AccumulateGrad::accumulateGrad(variable, grad, inputs[0], num_allowed, [&grad](at::Tensor&& update) {
    grad = std::move(update);
  });
  if (!had_grad) {
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
  if (!walk_.nodes[node].is_run()) {
    return;
  }
  const auto waiting = not_ready_.try_emplace(node, edge.function->num_inputs()).first;
  add(waiting->second, edge.input_nr, std::move(value));
  if (is_ready) {
    variable_list inputs = std::move(waiting->second);
    not_ready_.erase(waiting);
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
  if (at::GradMode::is_enabled()) { // under create_graph nothing is written over
    old = old + value;
  } else if (old.is_sparse() || old.is_sparse_csr()) {
    const bool in_place = may_add_in_place(value, old) && is_plain_buffer(value, stand_ins_);
    old = in_place ? value.add_(old) : value + old;
  } else if (may_add_in_place(old, value) && is_plain_buffer(old, stand_ins_) && !is_subclass(value, stand_ins_)) {
    old.add_(value);
  } else if (keeps_strides(old, value)) {
    old = old.clone();
    old.add_(value);
  } else {
    const bool depends = observer_ && holders_.counts_unless_kept(old, value) && is_plain_buffer(old, stand_ins_);
    const bool is_in_place = depends && !holders_.is_kept(old); // in eager
    const auto version = version_of(old);
    if (depends) {
      observer_->depends_on_holders(old);
    }
    old = old + value;
    if (is_in_place) {
      set_version(old, version + 1);
    }
  }
}

// Whether nobody but a buffer holds the tensor and its memory.
bool EngineRun::may_add_in_place(const at::Tensor& tensor, const at::Tensor& other) const {
  if (!observer_) {
    return may_write_over(tensor, 1 + at::caching::is_cached_tensor(tensor));
  }
  return holders_.may_add_in_place(tensor, other);
}

// Whether eager adds in place to what a boundary returned, and so leaves strides that a sum would not have, in dimensions of
// size 1. On another run a hook may keep the tensor: so the recording copies it first, and is told to look whether one has.
bool EngineRun::keeps_strides(const at::Tensor& tensor, const at::Tensor& other) const {
  if (!observer_ || !holders_.is_added_to_unless_kept(tensor, other) || !is_plain_buffer(tensor, stand_ins_) ||
      is_subclass(other, stand_ins_) || other.layout() != at::kStrided) {
    return false;
  }
  const auto sizes = tensor.sym_sizes(), strides = tensor.sym_strides();
  const bool has_size_1 = std::any_of(sizes.begin(), sizes.end(), [](const c10::SymInt& size) { return size == 1; });
  if (!has_size_1 || (strides == other.sym_strides() && is_laid_out_afresh(sizes, strides))) {
    return false;
  }
  observer_->depends_on_holders(tensor);
  return holders_.is_added_to_this_time(tensor, other);
}

std::vector<const variable_list*> EngineRun::waiting() const {
  std::vector<const variable_list*> lists = {&results_};
  for (const auto& task : ready_) {
    lists.push_back(&task.inputs);
  }
  for (const auto& [node, inputs] : not_ready_) {
    lists.push_back(&inputs);
  }
  if (in_flight_) {
    lists.push_back(in_flight_);
  }
  return lists;
}

void EngineRun::push(uint32_t node, variable_list inputs) {
  ready_.push_back({walk_.nodes[node].node->sequence_nr(), node, std::move(inputs)});
  std::push_heap(ready_.begin(), ready_.end());
}

Snapshot<at::Tensor> EngineRun::snapshot() {
  Snapshot<at::Tensor> state;
  state.newly_done = std::exchange(newly_done_, {});
  for (const auto& [node, inputs] : not_ready_) {
    state.not_ready.push_back({node, inputs});
  }
  for (const auto& task : ready_) {
    state.ready.push_back({task.node, task.inputs});
  }
  state.results = results_;
  return state;
}

} // namespace gradc
