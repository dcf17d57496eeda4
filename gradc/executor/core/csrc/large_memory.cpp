#include "executor/core/csrc/large_memory.h"

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <pthread.h>
#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <unordered_map>
#include <utility>
#include <vector>

namespace gradc {
namespace {

constexpr size_t least_large_bytes = size_t{1} << 20;
constexpr size_t large_page_bytes = size_t{2} << 20;
constexpr size_t unit_bytes = size_t{64} << 10; // sizes that differ by less are one
constexpr size_t most_of_block = 8; // a block serves for an eighth less than it has
constexpr double most_of_peak = 1.25; // is mapped, of what lived at once: sizes differ, and what is free does not always fit
constexpr std::chrono::seconds time_kept{60};

thread_local bool is_large_memory_in_use = false;

// New memory at a multiple of the large page; null where there is none.
void* map_large(size_t size) {
  void* mapped = mmap(nullptr, size + large_page_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) {
    return nullptr;
  }
  auto* begin = static_cast<std::byte*>(mapped);
  const size_t before = (large_page_bytes - reinterpret_cast<uintptr_t>(begin) % large_page_bytes) % large_page_bytes;
  if (before > 0) {
    munmap(begin, before);
  }
  munmap(begin + before + size, large_page_bytes - before);
#ifdef MADV_HUGEPAGE
  madvise(begin + before, size, MADV_HUGEPAGE); // where the kernel has none, small pages serve
#endif
  return begin + before;
}

// The process's blocks.
class LargeBlocks {
 public:
  // Null where memory has run out.
  void* take(size_t wanted) {
    const size_t size = (wanted + unit_bytes - 1) / unit_bytes * unit_bytes;
    const std::lock_guard guard(mutex_);
    if (const auto found = best_for(size); found != free_.end()) {
      const Free block = *found;
      free_.erase(found);
      kept_ -= block.size;
      note_live(block.begin, block.size);
      return block.begin;
    }
    give_back([&](const Free&) { return live_ + size + kept_ > most_of_peak * std::max(most_live_, live_ + size); });
    void* begin = map_large(size);
    if (!begin) {
      give_back(&any);
      begin = map_large(size);
    }
    if (begin) {
      note_live(begin, size);
    }
    return begin;
  }

  // False if it is none of these.
  bool give(void* begin) {
    const std::lock_guard guard(mutex_);
    const auto found = sizes_.find(begin);
    if (found == sizes_.end()) {
      return false;
    }
    c10::profiledCPUMemoryReporter().Delete(begin); // before it may be somebody else's
    const auto now = std::chrono::steady_clock::now();
    const size_t size = found->second;
    sizes_.erase(found);
    live_ -= size;
    free_.push_back({begin, size, now});
    kept_ += size;
    give_back([&](const Free& block) { return block.since + time_kept < now; });
    return true;
  }

  size_t release() {
    const std::lock_guard guard(mutex_);
    const size_t before = kept_;
    give_back(&any);
    return before;
  }

  // A child of the process gets the blocks as no thread is about to change them.
  void lock() {
    mutex_.lock();
  }
  void unlock() {
    mutex_.unlock();
  }

 private:
  struct Free {
    void* begin;
    size_t size;
    std::chrono::steady_clock::time_point since;
  };

  static bool any(const Free&) {
    return true;
  }

  // The smallest that will do; of equals the last freed, which caches may still hold.
  std::vector<Free>::iterator best_for(size_t size) {
    auto best = free_.end();
    for (auto block = free_.begin(); block != free_.end(); ++block) {
      if (block->size >= size && block->size - size <= size / most_of_block && (best == free_.end() || block->size <= best->size)) {
        best = block;
      }
    }
    return best;
  }

  void note_live(void* begin, size_t size) {
    sizes_.emplace(begin, size);
    live_ += size;
    most_live_ = std::max(most_live_, live_);
  }

  // To the kernel, what was freed first, as long as that holds.
  template <class Condition>
  void give_back(const Condition& holds) {
    auto end = free_.begin();
    for (; end != free_.end() && holds(*end); ++end) {
      munmap(end->begin, end->size);
      kept_ -= end->size;
    }
    free_.erase(free_.begin(), end);
  }

  std::mutex mutex_;
  std::unordered_map<void*, size_t> sizes_; // of those in use
  std::vector<Free> free_; // what was freed first comes first
  size_t live_ = 0, most_live_ = 0, kept_ = 0;
};

LargeBlocks& large_blocks() {
  static auto* const blocks = new LargeBlocks; // tensors may be freed after everything else
  return *blocks;
}

// torch's allocator, but for large memory of who asks for it.
class LargeAllocator final : public c10::Allocator {
 public:
  explicit LargeAllocator(c10::Allocator& others) : others_(others) {
    others_deleter = others_.raw_deleter();
  }

  c10::DataPtr allocate(size_t size) override {
    void* begin = is_large_memory_in_use && size >= least_large_bytes ? large_blocks().take(size) : nullptr;
    if (!begin) {
      return others_.allocate(size);
    }
    c10::profiledCPUMemoryReporter().New(begin, size);
    return {begin, begin, &free_memory, c10::Device(c10::DeviceType::CPU)};
  }
  void copy_data(void* to, const void* from, size_t size) const override {
    others_.copy_data(to, from, size);
  }
  bool is_simple_data_ptr(const c10::DataPtr& memory) const override {
    return others_.is_simple_data_ptr(memory);
  }
  c10::DeleterFnPtr raw_deleter() const override {
    return others_deleter ? &free_memory : nullptr;
  }

 private:
  static void free_memory(void* begin) {
    if (!large_blocks().give(begin)) {
      others_deleter(begin);
    }
  }

  static inline c10::DeleterFnPtr others_deleter = nullptr;
  c10::Allocator& others_;
};

} // namespace

LargeMemory::LargeMemory() : was_in_use_(std::exchange(is_large_memory_in_use, true)) {}

LargeMemory::~LargeMemory() {
  is_large_memory_in_use = was_in_use_;
}

void install_large_memory() {
  pthread_atfork([] { large_blocks().lock(); }, [] { large_blocks().unlock(); }, [] { large_blocks().unlock(); });
  c10::SetCPUAllocator(new LargeAllocator(*c10::GetCPUAllocator()));
}

size_t release_large_memory() {
  return large_blocks().release();
}

} // namespace gradc
