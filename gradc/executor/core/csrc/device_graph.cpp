#include "executor/core/csrc/device_graph.h"

#include "csrc/sizes.h"
#include "executor/core/csrc/below_autograd.h"
#include "executor/core/csrc/devices.h"
#include "executor/core/csrc/versions.h"

#include <ATen/ops/_foreach_copy.h>
#include <ATen/ops/as_strided.h>
#include <ATen/ops/empty.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <numeric>
#include <set>
#include <stdexcept>
#include <tuple>

namespace gradc {
namespace {

constexpr uintptr_t widest_load = 16; // bytes: kernels choose by how what they read is aligned to it
constexpr int64_t most_copied_bytes = int64_t{1} << 28; // before a replay
constexpr size_t few_memories = 8;

bool is_defined(const c10::IValue& value) {
  return value.isTensor() && value.toTensor().defined();
}

uintptr_t number_of(const void* place) {
  return reinterpret_cast<uintptr_t>(place);
}

// From the first to the last element in memory.
int64_t extent_of(const at::Tensor& tensor) {
  int64_t extent = 1;
  for (int64_t i = 0; i < tensor.dim(); ++i) {
    if (tensor.size(i) == 0) {
      return 0;
    }
    extent += (tensor.size(i) - 1) * tensor.stride(i);
  }
  return extent;
}

at::Tensor in_a_row(const at::Tensor& tensor) {
  return tensor.as_strided({extent_of(tensor)}, {1}, tensor.storage_offset());
}

// A stream to record on for each stream that replays: what a library keeps for a stream is then not shared by two that run at once.
c10::Stream recording_stream(c10::Device device, c10::StreamId replaying) {
  static std::mutex mutex;
  static std::map<std::tuple<c10::DeviceType, c10::DeviceIndex, c10::StreamId>, c10::Stream> streams;
  const std::lock_guard lock(mutex);
  const std::tuple key(device.type(), device.index(), replaying);
  const auto known = streams.find(key);
  if (known != streams.end()) {
    return known->second;
  }
  const c10::impl::VirtualGuardImpl guard(device.type());
  return streams.emplace(key, guard.getStreamFromGlobalPool(device)).first->second;
}

// Ends the recording however that of the calls ends; nothing of one that failed is left.
template <class Calls>
void record_calls(at::GraphImplInterface& graph, const Calls& calls) {
  graph.capture_begin({0, 0}, at::GraphCaptureMode::ThreadLocal);
  try {
    calls();
  } catch (...) {
    try {
      graph.capture_end();
    } catch (const std::exception&) { // it is spoilt, which is known
    }
    throw;
  }
  graph.capture_end();
}

void give_back(void* lease) {
  const std::unique_ptr<std::shared_ptr<LentMemory>> memory(static_cast<std::shared_ptr<LentMemory>*>(lease));
  (*memory)->num_lent.fetch_sub(1, std::memory_order_release);
}

c10::Storage lend(const std::shared_ptr<LentMemory>& memory) {
  const c10::Storage& storage = memory->storage;
  memory->num_lent.fetch_add(1, std::memory_order_relaxed);
  auto lease = std::make_unique<std::shared_ptr<LentMemory>>(memory);
  c10::DataPtr place(storage.mutable_data(), lease.release(), &give_back, storage.device());
  return c10::Storage(
      c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), storage.nbytes(), std::move(place), storage.allocator(), true));
}

// The same bytes in memory that is nobody's.
c10::Storage copy_of(const c10::Storage& storage) {
  const auto bytes = at::TensorOptions(at::kByte).device(storage.device());
  const auto size = static_cast<int64_t>(storage.nbytes());
  auto copy = at::empty({size}, bytes);
  if (size > 0) {
    copy.copy_(at::empty({0}, bytes).set_(storage, 0, {size}, {1}));
  }
  return copy.storage();
}

at::Tensor tensor_on(
    const DeviceGraphOutput& output, c10::Storage storage, int64_t offset, const std::vector<c10::IValue>& inputs,
    const std::vector<c10::IValue>& earlier) {
  auto tensor = at::detail::make_tensor<c10::TensorImpl>(std::move(storage), output.keys, output.dtype);
  auto* impl = tensor.unsafeGetTensorImpl();
  impl->set_sizes_and_strides(output.sizes, output.strides, offset);
  const c10::IValue* counted = output.input_of_versions ? &inputs[*output.input_of_versions]
      : output.output_of_versions                       ? &earlier[*output.output_of_versions]
                                                        : nullptr;
  if (impl->is_inference() || (counted && counted->toTensor().is_inference())) {
    return tensor;
  }
  impl->set_version_counter(
      counted ? counted->unsafeToTensorImpl()->version_counter() : c10::VariableVersion(output.version));
  return tensor;
}

std::vector<uint32_t> versions_of(const std::vector<c10::IValue>& values) {
  std::vector<uint32_t> versions(values.size());
  std::transform(values.begin(), values.end(), versions.begin(), [](const c10::IValue& value) {
    return is_defined(value) && !value.toTensor().is_inference() ? static_cast<uint32_t>(value.toTensor()._version()) : 0;
  });
  return versions;
}

// The memory of inputs that the plan writes to.
std::set<const c10::StorageImpl*> written_storages(const Plan& plan, const std::vector<c10::IValue>& inputs) {
  std::set<const c10::StorageImpl*> storages;
  for (const Index position : plan.written) {
    if (is_defined(inputs[position])) {
      storages.insert(inputs[position].toTensor().storage().unsafeGetStorageImpl());
    }
  }
  return storages;
}

bool is_lent(const std::shared_ptr<LentMemory>& memory) {
  return memory->num_lent.load(std::memory_order_acquire) > 0;
}

// For each slot the slot that began its version counter.
std::vector<Index> roots_of_versions(const Plan& plan) {
  std::vector<Index> roots(plan.metas.size());
  for (size_t slot = 0; slot < roots.size(); ++slot) {
    roots[slot] = static_cast<Index>(slot);
  }
  for (const Step& step : plan.steps) {
    for (const auto& [view, base] : step.shares) {
      roots[view] = roots[base];
    }
  }
  return roots;
}

} // namespace

void keep_lent(const at::Tensor& tensor) {
  if (tensor.has_storage() && tensor.storage().data_ptr().get_deleter() == &give_back) {
    const auto* memory = static_cast<const std::shared_ptr<LentMemory>*>(tensor.storage().data_ptr().get_context());
    (*memory)->num_lent.fetch_add(1, std::memory_order_relaxed);
  }
}

std::vector<const void*> places_of(const std::vector<c10::IValue>& inputs) {
  std::vector<const void*> places(inputs.size());
  std::transform(inputs.begin(), inputs.end(), places.begin(), [](const c10::IValue& input) {
    return is_defined(input) ? input.toTensor().const_data_ptr() : nullptr;
  });
  return places;
}

DeviceGraph::DeviceGraph(
    const Plan& plan, c10::Device device, Situation situation, const Values& inputs, const std::vector<bool>& have_moved,
    std::vector<bool> copied_memories)
    : device_(device),
      situation_(std::move(situation)),
      graph_(make_graph(device.type())),
      copied_memories_(std::move(copied_memories)) {
  const c10::DeviceGuard on_device(device);
  const auto recorded = read_inputs(plan, inputs, have_moved);
  const auto before = versions_of(recorded);
  Values outputs;
  {
    const c10::StreamGuard on_stream(recording_stream(device, situation_.stream));
    record_calls(*graph_, [&] { outputs = run_steps(plan, recorded); });
  }
  const auto after = versions_of(recorded);
  for (size_t i = 0; i < inputs_.size(); ++i) {
    inputs_[i].num_writes = after[i] - before[i];
  }
  describe_outputs(plan, recorded, outputs);
}

// The inputs as they are recorded. What the plan writes to is never read from a copy.
DeviceGraph::Values DeviceGraph::read_inputs(const Plan& plan, const Values& inputs, const std::vector<bool>& have_moved) {
  const BelowAutograd below;
  const NoAutocast autocast = no_autocast();
  const auto written = written_storages(plan, inputs);
  int64_t num_bytes = 0;
  Values recorded = inputs;
  for (size_t i = 0; i < inputs.size(); ++i) {
    Input& input = inputs_.emplace_back();
    if (!is_defined(inputs[i])) {
      input.value = inputs[i];
      continue;
    }
    const at::Tensor& tensor = inputs[i].toTensor();
    input.dtype = tensor.scalar_type();
    input.sizes = tensor.sizes().vec();
    input.strides = tensor.strides().vec();
    input.place = tensor.const_data_ptr();
    const auto item = static_cast<int64_t>(tensor.element_size()), extent = extent_of(tensor);
    const bool may_be_copied = extent > 0 && num_bytes + extent * item <= most_copied_bytes &&
        written.count(tensor.storage().unsafeGetStorageImpl()) == 0;
    if (have_moved[i] && may_be_copied) {
      const auto shift = static_cast<int64_t>(number_of(input.place) % widest_load) / item;
      num_bytes += extent * item;
      input.memory = at::empty({extent + shift}, tensor.options()).narrow(0, shift, extent);
      recorded[i] = input.memory.as_strided(input.sizes, input.strides, shift);
    }
  }
  return recorded;
}

bool DeviceGraph::fits(const Values& inputs, const Situation& now) const {
  if (!(now == situation_) || inputs.size() != inputs_.size()) {
    return false;
  }
  for (size_t i = 0; i < inputs.size(); ++i) {
    const Input& known = inputs_[i];
    if (!is_defined(inputs[i])) {
      const bool is_same = known.dtype == c10::ScalarType::Undefined &&
          (inputs[i].isInt() ? known.value.isInt() && known.value.toInt() == inputs[i].toInt() : !known.value.isInt());
      if (!is_same) {
        return false;
      }
      continue;
    }
    const at::Tensor& tensor = inputs[i].toTensor();
    if (tensor.scalar_type() != known.dtype || !are_equal(tensor.sizes(), known.sizes) || !are_equal(tensor.strides(), known.strides)) {
      return false;
    }
    const void* place = tensor.const_data_ptr();
    if (known.memory.defined() ? number_of(place) % widest_load != number_of(known.place) % widest_load : place != known.place) {
      return false;
    }
  }
  return true;
}

bool DeviceGraph::takes(const Values& inputs, const Situation& now) const {
  return fits(inputs, now) && std::none_of(memories_.begin(), memories_.end(), is_lent);
}

size_t DeviceGraph::num_bytes() const {
  return std::accumulate(memories_.begin(), memories_.end(), size_t{0}, [](size_t sum, const auto& memory) {
    return sum + memory->storage.nbytes();
  });
}

std::vector<bool> DeviceGraph::held_memories(std::vector<bool> known) const {
  std::vector<bool> are_held(memories_.size());
  for (size_t i = 0; i < memories_.size(); ++i) {
    are_held[i] = is_lent(memories_[i]) || (i < copied_memories_.size() && copied_memories_[i]);
  }
  return static_cast<size_t>(std::count(are_held.begin(), are_held.end(), true)) <= few_memories ? are_held : known;
}

void DeviceGraph::describe_outputs(const Plan& plan, const Values& inputs, const Values& outputs) {
  const auto roots = roots_of_versions(plan);
  std::map<Index, size_t> inputs_of_roots, outputs_of_roots;
  for (size_t i = 0; i < plan.inputs.size(); ++i) {
    inputs_of_roots.emplace(plan.inputs[i], i);
  }
  for (size_t i = 0; i < outputs.size(); ++i) {
    Output output = describe(plan, outputs[i], inputs);
    for (size_t earlier = 0; earlier < i && is_defined(outputs[i]); ++earlier) {
      if (is_defined(outputs[earlier]) && outputs[earlier].toTensor().is_same(outputs[i].toTensor())) {
        output.kind = Output::Kind::same;
        output.source = earlier;
        break;
      }
    }
    if (plan.outputs[i].kind == Operand::Kind::slot) {
      const Index root = roots[plan.outputs[i].index];
      if (const auto input = inputs_of_roots.find(root); input != inputs_of_roots.end()) {
        output.input_of_versions = input->second;
      } else if (const auto [known, is_first] = outputs_of_roots.emplace(root, i); !is_first) {
        output.output_of_versions = known->second;
      }
    }
    outputs_.push_back(std::move(output));
  }
}

DeviceGraph::Output DeviceGraph::describe(const Plan& plan, const c10::IValue& value, const Values& inputs) {
  Output output;
  if (!is_defined(value)) {
    output.value = value;
    return output;
  }
  const at::Tensor& tensor = value.toTensor();
  output.keys = tensor.key_set();
  output.dtype = tensor.dtype();
  output.sizes = tensor.sizes().vec();
  output.strides = tensor.strides().vec();
  output.offset = tensor.storage_offset();
  output.version = tensor.is_inference() ? 0 : tensor._version();
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (is_defined(inputs[i]) && inputs[i].toTensor().is_alias_of(tensor)) {
      const at::Tensor& input = inputs[i].toTensor();
      output.kind = input.is_same(tensor) ? Output::Kind::input : Output::Kind::view;
      output.source = i;
      output.offset -= input.storage_offset();
      if (output.kind == Output::Kind::input) {
        return output;
      }
    }
  }
  if (output.kind == Output::Kind::view) {
    return output;
  }
  for (const auto& [slot, constant] : plan.owned) {
    if (constant.toTensor().is_alias_of(tensor)) {
      throw std::runtime_error("a constant of its program leaves it");
    }
  }
  output.kind = Output::Kind::lent;
  const auto known = std::find_if(memories_.begin(), memories_.end(), [&](const auto& memory) {
    return memory->storage.unsafeGetStorageImpl() == tensor.storage().unsafeGetStorageImpl();
  });
  output.source = known - memories_.begin();
  if (known == memories_.end()) {
    memories_.push_back(std::make_shared<LentMemory>(tensor.storage()));
  }
  return output;
}

void DeviceGraph::launch(const Values& inputs) {
  const c10::DeviceGuard on_device(device_);
  std::map<c10::ScalarType, std::pair<std::vector<at::Tensor>, std::vector<at::Tensor>>> copied; // one kernel for all of a dtype
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (inputs_[i].memory.defined()) {
      auto& [copies, originals] = copied[inputs_[i].dtype];
      copies.push_back(inputs_[i].memory);
      originals.push_back(in_a_row(inputs[i].toTensor()));
    }
  }
  for (auto& [dtype, both] : copied) {
    auto& [copies, originals] = both;
    if (copies.size() == 1) {
      copies[0].copy_(originals[0]);
    } else {
      at::_foreach_copy_(copies, originals);
    }
  }
  graph_->replay();
}

DeviceGraph::Values DeviceGraph::outputs(const Values& inputs) const {
  std::vector<c10::Storage> storages;
  storages.reserve(memories_.size());
  for (size_t i = 0; i < memories_.size(); ++i) {
    const bool is_copied = i < copied_memories_.size() && copied_memories_[i];
    storages.push_back(is_copied ? copy_of(memories_[i]->storage) : lend(memories_[i]));
  }
  Values values;
  values.reserve(outputs_.size());
  for (const Output& output : outputs_) {
    switch (output.kind) {
      case Output::Kind::value:
        values.push_back(output.value);
        break;
      case Output::Kind::input:
        values.push_back(inputs[output.source]);
        break;
      case Output::Kind::same:
        values.push_back(values[output.source]);
        break;
      case Output::Kind::view: {
        const at::Tensor& input = inputs[output.source].toTensor();
        values.emplace_back(tensor_on(output, input.storage(), output.offset + input.storage_offset(), inputs, values));
        break;
      }
      case Output::Kind::lent:
        values.emplace_back(tensor_on(output, storages[output.source], output.offset, inputs, values));
        break;
    }
  }
  return values;
}

DeviceGraph::Values DeviceGraph::replay_as_recorded(const Values& inputs) {
  const BelowAutograd below;
  const NoAutocast autocast = no_autocast();
  launch(inputs);
  return outputs(inputs);
}

DeviceGraph::Values DeviceGraph::replay(const Values& inputs) {
  auto values = replay_as_recorded(inputs);
  for (size_t i = 0; i < inputs_.size(); ++i) {
    for (uint32_t write = 0; write < inputs_[i].num_writes; ++write) {
      bump_version(inputs[i]);
    }
  }
  return values;
}

} // namespace gradc
