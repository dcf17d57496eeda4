#include "executor/cpu/csrc/memory.h"

#include "csrc/plain.h"

#include <ATen/EmptyTensor.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/alignment.h>

#include <algorithm>
#include <cstdlib>
#include <numeric>
#include <utility>

namespace gradc {
namespace {

constexpr size_t alignment = c10::gAlignment;
constexpr size_t num_classes = small_bytes / alignment + 1;
constexpr size_t kept_bytes = 16 * 1024 * 1024;

// A size in units of the alignment.
constexpr size_t class_of(size_t size) {
  return (size + alignment - 1) / alignment;
}

// This thread's; null where the thread ends, and has none any more.
template <class T>
T* of_this_thread() {
  thread_local bool is_gone = false;
  struct Owner {
    T value;
    bool& is_gone;
    ~Owner() {
      is_gone = true;
    }
  };
  if (is_gone) {
    return nullptr;
  }
  thread_local Owner owner{{}, is_gone};
  return &owner.value;
}

// One thread's free blocks, by size in units of the alignment. A block may be freed by another thread than made it.
class Blocks {
 public:
  ~Blocks() {
    for (auto& blocks : free_) {
      for (void* block : blocks) {
        std::free(block);
      }
    }
  }

  void* take(size_t size_class) {
    auto& blocks = free_[size_class];
    if (blocks.empty()) {
      return nullptr;
    }
    void* block = blocks.back();
    blocks.pop_back();
    held_ -= size_class * alignment;
    return block;
  }

  bool give(void* block, size_t size_class) {
    if (held_ + size_class * alignment > kept_bytes) {
      return false;
    }
    free_[size_class].push_back(block);
    held_ += size_class * alignment;
    return true;
  }

 private:
  std::vector<std::vector<void*>> free_{num_classes};
  size_t held_ = 0;
};

// What stands before each block: its size class, in a unit of its own so that the block stays aligned.
struct Header {
  size_t size_class;
};

void free_block(void* header) {
  c10::profiledCPUMemoryReporter().Delete(static_cast<char*>(header) + alignment);
  Blocks* blocks = of_this_thread<Blocks>();
  if (!blocks || !blocks->give(header, static_cast<Header*>(header)->size_class)) {
    std::free(header);
  }
}

c10::DataPtr allocate(size_t size) {
  const size_t size_class = class_of(size);
  Blocks* blocks = of_this_thread<Blocks>();
  void* header = blocks ? blocks->take(size_class) : nullptr;
  if (!header) {
    header = std::aligned_alloc(alignment, (size_class + 1) * alignment);
    TORCH_CHECK_WITH(OutOfMemoryError, header, "gradc: out of memory: ", size, " bytes");
    static_cast<Header*>(header)->size_class = size_class;
  }
  void* data = static_cast<char*>(header) + alignment;
  c10::profiledCPUMemoryReporter().New(data, size);
  return {data, header, &free_block, c10::Device(c10::DeviceType::CPU)};
}

// One thread's small tensors that nobody holds, by size. A new one is two objects and their memory; these have both.
class Retired {
 public:
  // Undefined where none of the last few is of that dtype and size.
  at::Tensor take(const Meta& meta, size_t size) {
    auto& tensors = tensors_[class_of(size)];
    const size_t end = tensors.size(), begin = end < most_tried ? 0 : end - most_tried;
    for (size_t i = end; i-- > begin;) {
      if (tensors[i].scalar_type() == meta.dtype && tensors[i].storage().nbytes() == size) {
        std::swap(tensors[i], tensors.back());
        at::Tensor taken = std::move(tensors.back());
        tensors.pop_back();
        held_ -= size;
        c10::profiledCPUMemoryReporter().New(taken.mutable_data_ptr(), size);
        taken.unsafeGetTensorImpl()->set_sizes_and_strides(meta.sizes, meta.strides, 0);
        return taken;
      }
    }
    return {};
  }

  void give(at::Tensor tensor, size_t size) {
    if (held_ + size <= most_held) {
      c10::profiledCPUMemoryReporter().Delete(tensor.mutable_data_ptr());
      tensor.unsafeGetTensorImpl()->set_allow_tensor_metadata_change(true);
      tensors_[class_of(size)].push_back(std::move(tensor));
      held_ += size;
    }
  }

 private:
  static constexpr size_t most_tried = 4;
  static constexpr size_t most_held = 4 * 1024 * 1024;

  std::vector<std::vector<at::Tensor>> tensors_{num_classes};
  size_t held_ = 0;
};

// Whether the tensor is as `new_memory` made it, and nobody else holds it, its memory or its version.
bool is_as_made(const at::Tensor& tensor) {
  auto* impl = tensor.unsafeGetTensorImpl();
  constexpr auto keys = plain_keys | c10::DispatchKeySet(c10::BackendComponent::CPUBit);
  if (tensor.use_count() != 1 || tensor.weak_use_count() != 1 || impl->autograd_meta() || impl->pyobj_slot()->load_pyobj() ||
      !has_only(impl->key_set(), keys, 0) || impl->is_inference() || impl->version_counter().current_version() != 0 ||
      !impl->version_counter().unique()) {
    return false;
  }
  const auto& storage = tensor.storage();
  return storage.use_count() == 1 && !storage.unsafeGetStorageImpl()->pyobj_slot()->load_pyobj() &&
      storage.data_ptr().get_deleter() == &free_block && impl->storage_offset() == 0 &&
      storage.nbytes() == static_cast<size_t>(tensor.numel()) * tensor.itemsize();
}

// The memory of step.reuse; undefined if somebody else holds it, too.
at::Tensor take_memory(const Step& step, Frame& frame, const Meta& meta, size_t size) {
  const c10::IValue held = std::exchange(frame.slots[step.reuse], {});
  if (!held.isTensor()) {
    return {};
  }
  at::Tensor tensor = held.toTensor();
  auto* impl = tensor.unsafeGetTensorImpl();
  constexpr size_t ours = 2; // `held` and `tensor`
  if (tensor.use_count() != ours || !is_plain_on_cpu(held) || tensor.storage().use_count() != 1 || tensor.scalar_type() != meta.dtype ||
      tensor.storage().nbytes() != size || impl->pyobj_slot()->load_pyobj()) {
    return {};
  }
  impl->set_sizes_and_strides(meta.sizes, meta.strides, 0);
  return tensor;
}

} // namespace

size_t num_bytes(const Meta& meta) {
  return c10::multiply_integers(meta.sizes) * c10::elementSize(meta.dtype);
}

bool is_contiguous(const Meta& meta) {
  int64_t expected = 1;
  for (size_t i = meta.sizes.size(); i-- > 0;) {
    if (meta.sizes[i] != 1 && meta.strides[i] != expected) {
      return false;
    }
    expected *= meta.sizes[i];
  }
  return true;
}

bool is_dense(const Meta& meta) {
  std::vector<size_t> order(meta.sizes.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return meta.strides[a] < meta.strides[b]; });
  int64_t expected = 1;
  for (const size_t dimension : order) {
    if (meta.sizes[dimension] != 1 && meta.strides[dimension] != expected) {
      return false;
    }
    expected *= meta.sizes[dimension];
  }
  return true;
}

bool has_plain_strides(const Meta& meta) {
  int64_t expected = 1;
  for (size_t i = meta.sizes.size(); i-- > 0; expected *= std::max<int64_t>(meta.sizes[i], 1)) {
    if (meta.strides[i] != expected) {
      return false;
    }
  }
  return true;
}

bool has_sure_strides(const Meta& meta) {
  return has_plain_strides(meta) || std::find(meta.sizes.begin(), meta.sizes.end(), 1) == meta.sizes.end();
}

at::Tensor new_memory(const Meta& meta) {
  return new_memory(meta, num_bytes(meta));
}

at::Tensor new_memory(const Meta& meta, size_t size) {
  if (size > small_bytes) {
    return at::detail::empty_strided_cpu(meta.sizes, meta.strides, meta.dtype);
  }
  if (auto* retired = of_this_thread<Retired>(); retired && !c10::InferenceMode::is_enabled()) {
    if (at::Tensor tensor = retired->take(meta, size); tensor.defined()) {
      return tensor;
    }
  }
  auto storage = c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(), size, allocate(size), c10::GetCPUAllocator(), /*resizable=*/true);
  auto tensor = at::detail::make_tensor<c10::TensorImpl>(
      std::move(storage), c10::DispatchKeySet(c10::DispatchKey::CPU), c10::scalarTypeToTypeMeta(meta.dtype));
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(meta.sizes, meta.strides, 0);
  return tensor;
}

void retire(at::Tensor tensor) {
  if (auto* retired = of_this_thread<Retired>(); retired && is_as_made(tensor)) {
    const size_t size = tensor.storage().nbytes();
    retired->give(std::move(tensor), size);
  }
}

void retire(c10::IValue& slot) {
  if (slot.isTensor()) {
    retire(std::move(slot).toTensor());
  }
  slot = {};
}

at::Tensor result_memory(const Step& step, Frame& frame) {
  return result_memory(step, frame, num_bytes(*frame.plan.metas[step.outs[0]]));
}

at::Tensor result_memory(const Step& step, Frame& frame, size_t size) {
  const Meta& meta = *frame.plan.metas[step.outs[0]];
  at::Tensor memory;
  if (step.reuse >= 0) {
    memory = take_memory(step, frame, meta, size);
  }
  return memory.defined() ? memory : new_memory(meta, size);
}

} // namespace gradc
