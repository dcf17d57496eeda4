#include "capture/csrc/holders.h"

#include "csrc/autograd.h"

#include <torch/csrc/autograd/variable.h>
#include <torch/csrc/utils/pybind.h>

#include <algorithm>

namespace gradc {

namespace {

const void* handle_of(const at::Tensor& tensor) {
  return tensor.unsafeGetTensorImpl();
}

// How many references there are, in C++ and in Python. Its Python object holds the tensor, too, and is held by it.
size_t num_references(const at::Tensor& tensor) {
  if (!tensor.defined()) {
    return 0;
  }
  const size_t count = tensor.use_count();
  PyObject* object = tensor.unsafeGetTensorImpl()->pyobj_slot()->load_pyobj();
  return object ? count - 1 + (*c10::impl::getGlobalPyInterpreter())->refcnt(object) - 1 : count;
}

size_t num_on(const variable_list& values, const void* storage) {
  return std::count_if(values.begin(), values.end(), [&](const at::Tensor& value) {
    return value.defined() && storage_of(value) == storage;
  });
}

} // namespace

size_t num_among(const variable_list& values, const at::Tensor& tensor) {
  return std::count_if(values.begin(), values.end(), [&](const at::Tensor& value) { return value.is_same(tensor); });
}

const void* storage_of(const at::Tensor& tensor) {
  return tensor.has_storage() ? static_cast<const void*>(tensor.storage().unsafeGetStorageImpl()) : nullptr;
}

Holders::Holders(const variable_list& walked, Waiting waiting) : waiting_(std::move(waiting)) {
  for (const auto& tensor : walked) {
    if (tensor.defined()) {
      walked_.insert(handle_of(tensor));
      foreign_storages_.insert(storage_of(tensor));
    }
  }
}

bool Holders::is_held_once(const at::Tensor& tensor) const {
  return !is_kept(tensor) && !is_walked(tensor) && num_waiting(tensor) == 0;
}

std::vector<bool> Holders::stealable_among(const variable_list& inputs) const {
  std::vector<bool> are_stealable;
  for (const auto& input : inputs) {
    if (!input.defined() || input.is_view() || is_kept(input) || is_walked(input)) {
      are_stealable.push_back(false);
      continue;
    }
    const auto* value = find(input);
    const void* storage = storage_of(input);
    const bool is_own = (value && value->is_stealable) || !foreign_storages_.count(storage);
    are_stealable.push_back(is_own && num_waiting_on(storage) + num_on(inputs, storage) == 1);
  }
  return are_stealable;
}

bool Holders::may_add_in_place(const at::Tensor& tensor, const at::Tensor& other) const {
  const void* storage = storage_of(tensor);
  // A view holds its base, and so another reference to its memory.
  return !tensor.is_view() && storage != storage_of(other) && !is_walked(tensor) && !foreign_storages_.count(storage) &&
      num_waiting_on(storage) <= 1; // the value itself
}

bool Holders::is_added_to_unless_kept(const at::Tensor& tensor, const at::Tensor& other) const {
  const void* storage = storage_of(tensor);
  return find(tensor) && storage != storage_of(other) && num_waiting_on(storage) <= 1;
}

bool Holders::is_added_to_this_time(const at::Tensor& tensor, const at::Tensor& other) const {
  return is_added_to_unless_kept(tensor, other) && find(tensor)->is_stealable && !is_kept(tensor);
}

bool Holders::counts_unless_kept(const at::Tensor& tensor, const at::Tensor& other) const {
  const auto* value = find(tensor);
  return is_added_to_unless_kept(tensor, other) && (value->is_stealable || value->was_the_runs);
}

bool Holders::is_from_boundary(const at::Tensor& tensor) const {
  return find(tensor) != nullptr;
}

std::vector<bool> Holders::stealable_among_returned(const variable_list& outputs) const {
  std::vector<bool> are_stealable;
  for (const auto& output : outputs) {
    const auto* value = output.defined() ? find(output) : nullptr;
    are_stealable.push_back(value && value->is_stealable && !is_kept(output));
  }
  return are_stealable;
}

std::vector<size_t> Holders::count(const variable_list& inputs) {
  std::vector<size_t> counts;
  std::transform(inputs.begin(), inputs.end(), std::back_inserter(counts), num_references);
  return counts;
}

std::vector<bool> Holders::kept_among(
    const variable_list& inputs, const std::vector<size_t>& before, const variable_list& outputs) {
  std::vector<bool> are_kept;
  for (size_t i = 0; i < inputs.size(); ++i) {
    const auto& input = inputs[i];
    const size_t let_go = num_among(inputs, input), handed_on = num_among(outputs, input);
    are_kept.push_back(input.defined() && num_references(input) + let_go > before[i] + handed_on);
  }
  return are_kept;
}

void Holders::note_taken(const variable_list& inputs, const std::vector<bool>& are_kept) {
  note_given(inputs);
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (are_kept[i]) {
      values_.at(first_of(inputs[i])).is_kept = true;
    }
  }
}

void Holders::note_kept(const variable_list& inputs, const variable_list& results) {
  note(inputs);
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (inputs[i].defined() && is_kept(results[i])) {
      values_.at(first_of(inputs[i])).is_kept = true;
    }
  }
}

variable_list Holders::note_returned(
    const variable_list& inputs, const std::vector<bool>& are_stealable, variable_list outputs) {
  struct Returned {
    bool is_held_once, is_stealable;
    size_t first;
  };
  std::vector<Returned> returned;
  for (const auto& output : outputs) {
    const auto is_it = [&](const at::Tensor& other) { return other.is_same(output); };
    const size_t first = std::find_if(outputs.begin(), outputs.end(), is_it) - outputs.begin();
    const size_t input = std::find_if(inputs.begin(), inputs.end(), is_it) - inputs.begin();
    if (input < inputs.size()) { // handed on: the recording holds it, too
      returned.push_back({is_held_once(output), are_stealable[input], first});
      continue;
    }
    const bool is_held_once = torch::autograd::impl::is_tensor_stealable(output, num_among(outputs, output));
    returned.push_back({is_held_once, output.defined() && output.has_storage() && output.storage().use_count() == 1, first});
  }
  for (size_t i = 0; i < outputs.size(); ++i) {
    auto& output = outputs[i];
    if (!output.defined()) {
      continue;
    }
    const at::Tensor handle = output.requires_grad() ? output : new_handle(output); // one with a history cannot be recorded
    auto& value = add(handle);
    value.first = handle_of(returned[i].first < i ? outputs[returned[i].first] : handle);
    value.is_stealable = returned[i].is_stealable;
    const auto* known = find(output); // one boundary's output may be the next one's
    value.returned = known && known->returned.defined() ? known->returned : output;
    auto& first = values_.at(value.first);
    first.is_kept = first.is_kept || !returned[i].is_held_once;
    output = handle;
  }
  return outputs;
}

void Holders::note(const variable_list& values) {
  for (const auto& value : values) {
    if (value.defined()) {
      add(value);
    }
  }
}

void Holders::note_given(const variable_list& inputs) {
  for (const auto& input : inputs) {
    if (input.defined()) {
      const bool is_the_runs = !input.is_view() && !is_walked(input) && !foreign_storages_.count(storage_of(input));
      auto& value = add(input);
      value.was_the_runs = value.was_the_runs || is_the_runs;
    }
  }
}

void Holders::note_stand_ins(const variable_list& outputs, const std::vector<bool>& are_stealable) {
  note(outputs);
  for (size_t i = 0; i < outputs.size() && i < are_stealable.size(); ++i) {
    if (outputs[i].defined()) {
      values_.at(handle_of(outputs[i])).is_stealable = are_stealable[i];
    }
  }
}

variable_list Holders::as_returned(variable_list results) const {
  for (auto& result : results) {
    const auto* value = find(result);
    if (value && value->returned.defined()) {
      result = value->returned;
    }
  }
  return results;
}

Holders::Value& Holders::add(const at::Tensor& tensor) {
  foreign_storages_.insert(storage_of(tensor));
  return values_.try_emplace(handle_of(tensor), Value{handle_of(tensor)}).first->second;
}

const Holders::Value* Holders::find(const at::Tensor& tensor) const {
  const auto found = values_.find(handle_of(tensor));
  return found == values_.end() ? nullptr : &found->second;
}

const void* Holders::first_of(const at::Tensor& tensor) const {
  const auto* value = find(tensor);
  return value ? value->first : handle_of(tensor);
}

bool Holders::is_kept(const at::Tensor& tensor) const {
  const auto* value = find(tensor);
  return value && values_.at(value->first).is_kept;
}

bool Holders::is_walked(const at::Tensor& tensor) const {
  return walked_.count(handle_of(tensor)) > 0;
}

size_t Holders::num_waiting(const at::Tensor& tensor) const {
  const void* first = first_of(tensor);
  size_t count = 0;
  for (const auto* values : waiting_()) {
    count += std::count_if(values->begin(), values->end(), [&](const at::Tensor& value) {
      return value.defined() && first_of(value) == first;
    });
  }
  return count;
}

size_t Holders::num_waiting_on(const void* storage) const {
  size_t count = 0;
  for (const auto* values : waiting_()) {
    count += num_on(*values, storage);
  }
  return count;
}

} // namespace gradc
