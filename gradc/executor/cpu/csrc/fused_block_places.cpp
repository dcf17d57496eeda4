#include "executor/cpu/csrc/fused_block_places.h"

#include <algorithm>
#include <utility>

namespace gradc {
namespace {

constexpr int64_t arena_alignment = 64;

class Placer {
 public:
  Placer(std::vector<Root>& roots, Stretch& stretch) : roots_(roots), stretch_(stretch) {
    for (size_t i = 0; i < stretch.calls.size(); i += stretch.calls[i].chain) {
      chain_of_.insert(chain_of_.end(), stretch.calls[i].chain, i);
    }
  }

  void place_all() {
    std::vector<Root*> inner;
    for (Root& root : roots_) {
      if (root.is_tensor) {
        root.address = {stretch_.num_buffers++, 0};
      } else if (!place_in_scratch(root)) {
        inner.push_back(&root);
      }
    }
    for (size_t i = 0; i < inner.size(); ++i) {
      place_in_arena(*inner[i], {inner.data(), i});
    }
  }

 private:
  bool is_in_one_chain(const Root& root) const {
    const size_t chain = chain_of_[root.first];
    return chain == chain_of_[root.last] && stretch_.calls[chain].chain > 1;
  }

  // Values of one chain: where no part of another value is that lives at the same time.
  bool place_in_scratch(Root& root) {
    if (!is_in_one_chain(root)) {
      return false;
    }
    std::vector<bool> taken(Stretch::most_scratch);
    for (const Root& other : roots_) {
      if (other.address.buffer == Address::scratch && other.first <= root.last && root.first <= other.last) {
        taken[other.address.offset / Stretch::scratch_bytes] = true;
      }
    }
    const auto free = std::find(taken.begin(), taken.end(), false);
    if (free == taken.end()) {
      return false;
    }
    root.address = {Address::scratch, (free - taken.begin()) * Stretch::scratch_bytes};
    return true;
  }

  size_t start_of(const Root& root) const {
    return chain_of_[root.first];
  }

  size_t end_of(const Root& root) const {
    const size_t chain = chain_of_[root.last];
    return chain + stretch_.calls[chain].chain - 1;
  }

  // At the lowest offset where nothing lies, of those `placed` before, that lives at the same time.
  void place_in_arena(Root& root, c10::ArrayRef<Root*> placed) {
    std::vector<std::pair<int64_t, int64_t>> taken;
    for (const Root* other : placed) {
      if (start_of(*other) <= end_of(root) && start_of(root) <= end_of(*other)) {
        taken.emplace_back(other->address.offset, other->address.offset + other->bytes);
      }
    }
    std::sort(taken.begin(), taken.end());
    int64_t offset = 0;
    for (const auto& [from, to] : taken) {
      if (offset + root.bytes <= from) {
        break;
      }
      offset = std::max(offset, (to + arena_alignment - 1) / arena_alignment * arena_alignment);
    }
    root.address = {Address::arena, offset};
    stretch_.arena_bytes = std::max(stretch_.arena_bytes, offset + root.bytes);
  }

  std::vector<Root>& roots_;
  Stretch& stretch_;
  std::vector<size_t> chain_of_; // the first call of each call's chain
};

} // namespace

void place(std::vector<Root>& roots, Stretch& stretch) {
  Placer(roots, stretch).place_all();
}

} // namespace gradc
