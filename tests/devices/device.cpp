// A device that does not exist, for torch's PrivateUse1: tensors on it have an address that no code of the host can read or write.
//
//     address of the device = address of the host + 2^50
//
// No machine maps such an address, so whoever takes it for the host's memory dies there and then. Its kernels are the CPU's, run on
// copies; it has two devices (and so the engine two threads), streams that say only which one they are, autocast for products, and graphs.
#include <ATen/EmptyTensor.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/GraphImplInterface.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/convolution.h>
#include <ATen/ops/convolution_backward.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/resize_native.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/library.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace {

constexpr auto type = c10::DeviceType::PrivateUse1;
constexpr c10::DeviceIndex num_devices = 2;
constexpr uintptr_t distance = uintptr_t(1) << 50;

thread_local c10::DeviceIndex current = 0;
thread_local std::array<c10::StreamId, num_devices> streams{};
std::atomic<c10::StreamId> last_stream{0};

// ---- memory

void* on_device(void* host) {
  return reinterpret_cast<void*>(reinterpret_cast<uintptr_t>(host) + distance);
}

void* on_host(const void* device) {
  return device ? reinterpret_cast<void*>(reinterpret_cast<uintptr_t>(device) - distance) : nullptr;
}

// ---- graphs: what is called while one is recorded is noted, not done

// The memory of one graph. What is freed while it is recorded may be given out once more.
struct Pool {
  ~Pool() {
    for (const auto& [host, size] : blocks) {
      std::free(host);
    }
  }
  void* take(size_t size) {
    if (const auto known = unused.find(size); known != unused.end()) {
      void* host = known->second;
      unused.erase(known);
      return host;
    }
    void* host = std::malloc(size ? size : 1);
    TORCH_CHECK(host, "the simulated device is out of memory");
    blocks.emplace(host, size);
    return host;
  }
  std::map<void*, size_t> blocks;
  std::multimap<size_t, void*> unused;
};

struct Recording {
  std::shared_ptr<Pool> pool = std::make_shared<Pool>();
  std::vector<std::function<void()>> calls;
};

thread_local Recording* recording = nullptr;

struct Block {
  std::shared_ptr<Pool> pool;
  void* host;
};

void give_back(void* pointer) {
  const std::unique_ptr<Block> block(static_cast<Block*>(pointer));
  block->pool->unused.emplace(block->pool->blocks.at(block->host), block->host);
}

void refuse_while_recording(const std::string& what) {
  TORCH_CHECK(!recording, "the simulated device: ", what, " while a graph is recorded");
}

struct Allocator final : c10::Allocator {
  c10::DataPtr allocate(size_t size) override {
    if (recording) {
      auto block = std::make_unique<Block>(Block{recording->pool, recording->pool->take(size)});
      void* there = on_device(block->host);
      return {there, block.release(), &give_back, c10::Device(type, current)};
    }
    void* host = std::malloc(size ? size : 1);
    TORCH_CHECK(host, "the simulated device is out of memory");
    return {on_device(host), host, &std::free, c10::Device(type, current)};
  }
  void copy_data(void* to, const void* from, size_t size) const override {
    std::memcpy(on_host(to), on_host(from), size);
  }
};

Allocator allocator;
const c10::DispatchKeySet keys(c10::DispatchKey::PrivateUse1);

at::Tensor empty(
    c10::SymIntArrayRef sizes, std::optional<at::ScalarType> dtype, std::optional<at::Layout>, std::optional<at::Device> device,
    std::optional<bool>, std::optional<at::MemoryFormat> format) {
  const c10::DeviceGuard guard(device.value_or(c10::Device(type, current)));
  return at::detail::empty_generic(C10_AS_INTARRAYREF_SLOW(sizes), &allocator, keys, c10::dtype_or_default(dtype), format);
}

at::Tensor empty_strided(
    c10::SymIntArrayRef sizes, c10::SymIntArrayRef strides, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
    std::optional<at::Device> device, std::optional<bool>) {
  const c10::DeviceGuard guard(device.value_or(c10::Device(type, current)));
  return at::detail::empty_strided_generic(
      C10_AS_INTARRAYREF_SLOW(sizes), C10_AS_INTARRAYREF_SLOW(strides), &allocator, keys, c10::dtype_or_default(dtype));
}

// The same elements as the host sees them.
at::Tensor seen_by_host(const at::Tensor& tensor) {
  if (tensor.device().type() != type) {
    return tensor;
  }
  auto seen = at::from_blob(on_host(tensor.const_data_ptr()), tensor.sizes(), tensor.strides(), tensor.options().device(at::kCPU));
  seen._set_conj(tensor.is_conj());
  seen._set_neg(tensor.is_neg());
  return seen;
}

// What the host does for the device is no business of autograd's, autocast's or a dispatch mode's.
struct Unseen {
  at::AutoDispatchBelowADInplaceOrView below;
  c10::impl::ExcludeDispatchKeyGuard no_modes{c10::python_ks | c10::autocast_dispatch_keyset};
};

at::Tensor copy_from(const at::Tensor& from, const at::Tensor& to, bool) {
  const Unseen unseen;
  if (recording) {
    if (from.device() != to.device()) {
      refuse_while_recording("a copy from or to the host");
    }
    recording->calls.emplace_back([from = seen_by_host(from), to = seen_by_host(to)] { to.copy_(from); });
    return to;
  }
  seen_by_host(to).copy_(seen_by_host(from));
  return to;
}

// torch's own, which copies what is there as the host does, once there is room.
const at::Tensor& resize_(const at::Tensor& self, c10::SymIntArrayRef sizes, std::optional<at::MemoryFormat> format) {
  const auto plain = C10_AS_INTARRAYREF_SLOW(sizes);
  const auto& storage = self.storage();
  const size_t wanted = at::detail::computeStorageNbytesContiguous(plain, self.element_size(), self.storage_offset());
  if (wanted > storage.nbytes()) {
    const c10::DeviceGuard guard(self.device());
    auto memory = allocator.allocate(wanted);
    if (storage.nbytes() > 0) {
      refuse_while_recording("memory that grows");
      allocator.copy_data(memory.get(), storage.data(), storage.nbytes());
    }
    storage.set_data_ptr_noswap(std::move(memory));
    storage.set_nbytes(wanted);
  }
  return at::native::resize_(self, plain, format);
}

at::Tensor copy_from_and_resize(const at::Tensor& from, const at::Tensor& to) {
  if (to.sizes() != from.sizes()) {
    resize_(to, c10::fromIntArrayRefSlow(from.sizes()), std::nullopt);
  }
  return copy_from(from, to, false);
}

// ---- kernels

// What was called since `watch`: "op device.stream". Kept for tests that ask on which stream a backward ran.
std::mutex calls_lock;
bool is_watched = false;
std::vector<std::string> calls;

void note(const std::string& op, c10::DeviceIndex device, c10::StreamId stream) {
  if (const std::lock_guard lock(calls_lock); is_watched) {
    calls.push_back(op + " " + std::to_string(device) + "." + std::to_string(stream));
  }
}

// The device whose tensors an op is given, if any.
std::optional<c10::Device> refuse_two_devices(const c10::OperatorHandle& op, const torch::jit::Stack& arguments) {
  std::optional<c10::Device> found;
  const auto visit = [&](const at::Tensor& tensor) {
    if (tensor.defined() && tensor.device().type() == type && tensor.dim() > 0) {
      TORCH_CHECK(
          !found || *found == tensor.device(), "Expected all tensors to be on the same device, but ", op.schema().name(),
          " got some on ", *found, " and some on ", tensor.device());
      found = tensor.device();
    }
  };
  for (const auto& argument : arguments) {
    if (argument.isTensor()) {
      visit(argument.toTensor());
    } else if (argument.isTensorList()) {
      for (const at::Tensor& tensor : argument.toTensorVector()) {
        visit(tensor);
      }
    }
  }
  return found;
}

// Notes what computes results on the host, and returns where they will be.
using Compute = std::function<std::vector<at::Tensor>()>;
std::vector<at::Tensor> record(const Compute& compute) {
  auto* now = std::exchange(recording, nullptr);
  const auto like = compute();
  recording = now;
  std::vector<at::Tensor> results, seen;
  for (const auto& one : like) {
    results.push_back(one.defined() ? at::empty_strided(one.sizes(), one.strides(), one.options().device(c10::Device(type, current))) : one);
    seen.push_back(one.defined() ? seen_by_host(results.back()) : one);
  }
  recording->calls.emplace_back([compute, seen] {
    const auto made = compute();
    for (size_t i = 0; i < made.size(); ++i) {
      if (made[i].defined()) {
        seen[i].copy_(made[i]);
      }
    }
  });
  return results;
}

// The same for an op of torch's. What it writes to is an argument, or new.
void record_op(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const auto& name = op.schema().name();
  const bool is_read = op.hasTag(at::Tag::data_dependent_output) || name == "aten::nonzero";
  const bool waits = name.find("logcumsumexp") != std::string::npos; // some op has to be one that nobody knows of beforehand
  TORCH_CHECK(!is_read && !waits, "the simulated device: ", name, " while a graph is recorded");
  const auto num_arguments = static_cast<ptrdiff_t>(op.schema().arguments().size());
  const torch::jit::Stack arguments(stack->end() - num_arguments, stack->end());
  torch::jit::drop(*stack, num_arguments);
  const auto each = [](const torch::jit::Stack& values, const std::function<at::Tensor(const at::Tensor&)>& make) {
    torch::jit::Stack made;
    for (const auto& value : values) {
      if (value.isTensor() && value.toTensor().defined()) {
        made.emplace_back(make(value.toTensor()));
      } else if (value.isTensorList()) {
        std::vector<at::Tensor> list;
        for (const at::Tensor& tensor : value.toTensorVector()) {
          list.push_back(make(tensor));
        }
        made.emplace_back(list);
      } else if (value.isOptionalTensorList()) {
        c10::List<std::optional<at::Tensor>> list;
        for (const auto& item : value.toOptionalTensorVector()) {
          list.push_back(item ? std::optional(make(*item)) : item);
        }
        made.emplace_back(list);
      } else {
        made.push_back(value);
      }
    }
    return made;
  };
  const auto seen = each(arguments, seen_by_host);
  auto* now = std::exchange(recording, nullptr);
  auto generator = at::detail::getDefaultCPUGenerator();
  const auto draws = generator.get_state();
  std::vector<std::pair<at::Tensor, at::Tensor>> copies; // of arguments, and these
  auto results = each(arguments, [&copies](const at::Tensor& tensor) {
    copies.emplace_back(seen_by_host(tensor).clone(), tensor);
    return copies.back().first;
  });
  op.callBoxed(results);
  generator.set_state(draws);
  recording = now;
  torch::jit::Stack made, targets;
  const std::function<at::Tensor(const at::Tensor&)> place = [&copies](const at::Tensor& result) {
    for (const auto& [copy, argument] : copies) {
      if (copy.is_same(result)) {
        return argument;
      }
    }
    return result.defined() ? at::empty_strided(result.sizes(), result.strides(), result.options().device(c10::Device(type, current))) : result;
  };
  made = each(results, place);
  targets = each(made, seen_by_host);
  recording->calls.emplace_back([op, seen, targets] {
    // What the schema does not call written to is not, as in the fallback.
    torch::jit::Stack values;
    for (size_t i = 0; i < seen.size(); ++i) {
      const auto* alias = op.schema().arguments()[i].alias_info();
      values.push_back(seen[i].isTensor() && seen[i].toTensor().defined() && !(alias && alias->isWrite()) ? seen[i].toTensor().clone() : seen[i]);
    }
    op.callBoxed(values);
    const std::function<void(const c10::IValue&, const c10::IValue&)> copy = [](const c10::IValue& from, const c10::IValue& to) {
      if (from.isTensor() && from.toTensor().defined() && from.toTensor().const_data_ptr() != to.toTensor().const_data_ptr()) {
        to.toTensor().copy_(from.toTensor());
      } else if (from.isTensorList()) {
        for (size_t i = 0; i < from.toTensorVector().size(); ++i) {
          to.toTensorVector()[i].copy_(from.toTensorVector()[i]);
        }
      }
    };
    for (size_t i = 0; i < values.size(); ++i) {
      copy(values[i], targets[i]);
    }
  });
  stack->insert(stack->end(), made.begin(), made.end());
}

// torch has no kernel of its own for convolutions elsewhere: it names ops that a device is to have.
at::Tensor convolution(
    const at::Tensor& input, const at::Tensor& weight, const std::optional<at::Tensor>& bias, c10::SymIntArrayRef stride,
    c10::SymIntArrayRef padding, c10::SymIntArrayRef dilation, bool is_transposed, c10::SymIntArrayRef output_padding,
    c10::SymInt groups) {
  const Unseen unseen;
  const auto added = bias && bias->defined() ? std::optional<at::Tensor>(seen_by_host(*bias)) : std::nullopt;
  const auto compute = [input = seen_by_host(input), weight = seen_by_host(weight), added, stride = stride.vec(), padding = padding.vec(),
                        dilation = dilation.vec(), is_transposed, output_padding = output_padding.vec(), groups] {
    return std::vector<at::Tensor>{
        at::convolution_symint(input, weight, added, stride, padding, dilation, is_transposed, output_padding, groups)};
  };
  return recording ? record(compute)[0] : compute()[0].to(input.device());
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> convolution_backward(
    const at::Tensor& grad, const at::Tensor& input, const at::Tensor& weight, c10::SymIntArrayRef stride,
    c10::SymIntArrayRef padding, c10::SymIntArrayRef dilation, bool is_transposed, c10::SymIntArrayRef output_padding,
    c10::SymInt groups, std::array<bool, 3> wanted) {
  const Unseen unseen;
  const auto bias_sizes = std::vector<c10::SymInt>{is_transposed ? weight.sym_size(1) * groups : weight.sym_size(0)};
  const auto compute = [grad = seen_by_host(grad), input = seen_by_host(input), weight = seen_by_host(weight), bias_sizes, stride = stride.vec(),
                        padding = padding.vec(), dilation = dilation.vec(), is_transposed, output_padding = output_padding.vec(), groups, wanted] {
    const auto [of_input, of_weight, of_bias] = at::convolution_backward_symint(
        grad, input, weight, bias_sizes, stride, padding, dilation, is_transposed, output_padding, groups, wanted);
    return std::vector<at::Tensor>{of_input, of_weight, of_bias};
  };
  if (recording) {
    const auto made = record(compute);
    return {made[0], made[1], made[2]};
  }
  const auto made = compute();
  const auto there = [&](const at::Tensor& one) { return one.defined() ? one.to(input.device()) : one; };
  return {there(made[0]), there(made[1]), there(made[2])};
}

// As on CUDA, some of what attention returns is undefined, and with it some of what its backward takes.
std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, c10::SymInt, c10::SymInt, at::Tensor, at::Tensor, at::Tensor> attention(
    const at::Tensor& query, const at::Tensor& key, const at::Tensor& value, double dropout, bool is_causal, bool,
    std::optional<double> scale) {
  const Unseen unseen;
  refuse_while_recording("attention"); // its kernels of the host are not recorded
  const auto [out, sums] = at::_scaled_dot_product_flash_attention_for_cpu(
      seen_by_host(query), seen_by_host(key), seen_by_host(value), dropout, is_causal, std::nullopt, scale);
  const auto state = at::empty({2}, query.options().dtype(at::kUInt64)), mask = at::empty({0}, query.options());
  const auto there = [&](const at::Tensor& made) { return made.to(query.device()); };
  return {there(out), there(sums.contiguous()), {}, {}, query.sym_size(2), key.sym_size(2), state, state.select(0, 0), mask};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> attention_backward(
    const at::Tensor& grad, const at::Tensor& query, const at::Tensor& key, const at::Tensor& value, const at::Tensor& out,
    const at::Tensor& sums, const at::Tensor& starts_of_queries, const at::Tensor& starts_of_keys, c10::SymInt, c10::SymInt,
    double dropout, bool is_causal, const at::Tensor&, const at::Tensor&, std::optional<double> scale) {
  TORCH_CHECK(!starts_of_queries.defined() && !starts_of_keys.defined(), "what forward returned undefined is defined");
  const Unseen unseen;
  refuse_while_recording("attention");
  const auto [of_query, of_key, of_value] = at::_scaled_dot_product_flash_attention_for_cpu_backward(
      seen_by_host(grad), seen_by_host(query), seen_by_host(key), seen_by_host(value), seen_by_host(out),
      seen_by_host(sums).transpose(1, 2).contiguous().transpose(1, 2), dropout, is_causal, std::nullopt, scale);
  const auto there = [&](const at::Tensor& made) { return made.to(query.device()); };
  return {there(of_query), there(of_key), there(of_value)};
}

void run_on_cpu(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const auto num_arguments = op.schema().arguments().size();
  const auto found = refuse_two_devices(op, torch::jit::Stack(stack->end() - static_cast<ptrdiff_t>(num_arguments), stack->end()));
  const auto note_it = [name = op.schema().name(), found] {
    if (found) {
      note(name, found->index(), streams[found->index()]);
    }
  };
  const Unseen unseen;
  if (recording) {
    recording->calls.emplace_back(note_it);
    return record_op(op, stack);
  }
  note_it();
  at::native::cpu_fallback(op, stack);
}

struct Graph final : at::GraphImplInterface {
  explicit Graph(const at::GraphImplArgs&) {}
  void capture_begin(at::MempoolId_t, at::GraphCaptureMode mode) override {
    TORCH_CHECK(mode == at::GraphCaptureMode::ThreadLocal, "the simulated device records in one thread");
    TORCH_CHECK(streams[current] != 0, "the simulated device records on a stream of its own, not on the default one");
    TORCH_CHECK(!recording, "the simulated device records already");
    recorded = {};
    recording = &recorded;
  }
  void capture_end() override {
    recording = nullptr;
  }
  void instantiate() override {}
  // What a replay computes depends on nothing that an earlier one left behind.
  void replay() override {
    refuse_while_recording("a replay");
    const Unseen unseen;
    for (const auto& [host, size] : recorded.pool->blocks) {
      std::memset(host, 0xff, size);
    }
    for (const auto& call : recorded.calls) {
      call();
    }
  }
  void reset() override {
    recorded = {};
  }
  at::MempoolId_t pool() const override { return {0, 0}; }
  void enable_debug_mode() override {}
  void debug_dump(const std::string&) override {}

  Recording recorded;
};

std::vector<std::string> watch(bool begin) {
  const std::lock_guard lock(calls_lock);
  is_watched = begin;
  return std::exchange(calls, {});
}

// ---- devices and streams

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return ::type; }
  c10::DeviceIndex deviceCount() const noexcept override { return num_devices; }
  c10::Device getDevice() const override { return {::type, current}; }
  void setDevice(c10::Device device) const override { current = device.index(); }
  void uncheckedSetDevice(c10::Device device) const noexcept override { current = device.index(); }
  c10::Device exchangeDevice(c10::Device device) const override {
    return {::type, std::exchange(current, device.has_index() ? device.index() : current)};
  }
  static c10::Stream stream(c10::Device device, c10::StreamId id) { return c10::Stream(c10::Stream::UNSAFE, device, id); }
  static size_t index(c10::Device device) { return device.has_index() ? device.index() : current; }
  c10::Stream getStream(c10::Device device) const override {
    return stream({::type, static_cast<c10::DeviceIndex>(index(device))}, streams[index(device)]);
  }
  c10::Stream getDefaultStream(c10::Device device) const override { return stream(device, 0); }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool) const override { return stream(device, ++last_stream); }
  c10::Stream getNewStream(c10::Device device, int) const override { return stream(device, ++last_stream); }
  c10::Stream exchangeStream(c10::Stream next) const override {
    return stream(next.device(), std::exchange(streams[index(next.device())], next.id()));
  }
  // All work is done when it is asked for: there is nothing to wait for. Who waits is told all the same.
  void record(void**, const c10::Stream&, c10::DeviceIndex, c10::EventFlag) const override {}
  void block(void*, const c10::Stream& stream) const override { note("wait", stream.device_index(), stream.id()); }
  bool queryEvent(void*) const override { return true; }
  void synchronizeEvent(void*) const override {}
  bool queryStream(const c10::Stream&) const override { return true; }
  bool isStreamCapturing(const c10::Stream&) const override { return recording; }
  void synchronizeStream(const c10::Stream&) const override {}
  void synchronizeDevice(c10::DeviceIndex) const override {}
};

C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard)

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return num_devices; }
  void setCurrentDevice(c10::DeviceIndex device) const override { current = device; }
  c10::DeviceIndex getCurrentDevice() const override { return current; }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex device) const override { return std::exchange(current, device); }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex device) const override {
    return device < 0 ? current : exchangeDevice(device);
  }
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t size) const override {
    const c10::DeviceGuard guard(storage.device());
    auto memory = allocator.allocate(size);
    if (const auto kept = std::min(size, storage.nbytes()); kept > 0) {
      allocator.copy_data(memory.get(), storage.data(), kept);
    }
    storage.set_data_ptr_noswap(std::move(memory));
    storage.set_nbytes(size);
  }
};

const bool is_registered = [] {
  c10::SetAllocator(type, &allocator);
  at::RegisterPrivateUse1HooksInterface(new Hooks());
  return true;
}();

} // namespace

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&run_on_cpu>());
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", empty);
  m.impl("empty_strided", empty_strided);
  m.impl("_copy_from", copy_from);
  m.impl("_copy_from_and_resize", copy_from_and_resize);
  m.impl("resize_", resize_);
  m.impl("convolution_overrideable", convolution);
  m.impl("convolution_backward_overrideable", convolution_backward);
  m.impl("_scaled_dot_product_flash_attention", attention);
  m.impl("_scaled_dot_product_flash_attention_backward", attention_backward);
  m.impl("record_stream", [](at::Tensor&, c10::Stream) {});
  m.impl("as_strided", at::native::as_strided_tensorimpl);
  m.impl("view", at::native::view);
  m.impl("_reshape_alias", at::native::_reshape_alias);
  m.impl("unfold", at::native::unfold);
  m.impl("set_.source_Tensor", at::native::set_tensor_);
  m.impl("set_.source_Storage", [](at::Tensor& self, at::Storage source) -> at::Tensor& { return at::native::set_(self, source); });
  m.impl("set_.source_Storage_storage_offset", at::native::set_storage_cpu_);
}

// A lazy conjugate or negative is copied as what it is: torch's way would copy it first, and so for ever.
TORCH_LIBRARY_IMPL(aten, Conjugate, m) {
  m.impl("_copy_from", torch::CppFunction::makeFallthrough());
}

TORCH_LIBRARY_IMPL(aten, Negative, m) {
  m.impl("_copy_from", torch::CppFunction::makeFallthrough());
}

TORCH_LIBRARY_IMPL(_, AutocastPrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFallthrough());
}

TORCH_LIBRARY_IMPL(aten, AutocastPrivateUse1, m) {
  KERNEL_PRIVATEUSEONE(mm, lower_precision_fp)
  KERNEL_PRIVATEUSEONE(addmm, lower_precision_fp)
  KERNEL_PRIVATEUSEONE(bmm, lower_precision_fp)
  KERNEL_PRIVATEUSEONE(matmul, lower_precision_fp)
  KERNEL_PRIVATEUSEONE(linear, lower_precision_fp)
  KERNEL_PRIVATEUSEONE(exp, fp32)
}

// Its graphs, once it has its name: torch finds them by that.
void register_graphs() {
  at::GraphImplRegistry()->Register(c10::DeviceTypeName(type, false), [](const at::GraphImplArgs& arguments) -> std::unique_ptr<at::GraphImplInterface> {
    return std::make_unique<Graph>(arguments);
  });
}

TORCH_LIBRARY(simulated, m) {
  m.def("watch(bool begin) -> str[]", watch);
  m.def("register_graphs() -> ()", register_graphs);
  m.def("current_device() -> int", [] { return int64_t(current); });
  m.def("set_device(int index) -> ()", [](int64_t index) { current = static_cast<c10::DeviceIndex>(index); });
}
