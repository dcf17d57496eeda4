// Pointers numbered as they are met: the nodes of a walked graph, its tensors, their memory.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

namespace gradc {

// Pointer -> number, for pointers that are only added. Open addressing: no allocation for each.
class PointerMap {
 public:
  // The number of `key`; `next` if it is new.
  std::pair<int32_t, bool> insert(const void* key, int32_t next) {
    if (2 * (size_ + 1) > cells_.size()) {
      grow();
    }
    auto& cell = find_cell(key);
    if (cell.first == key) {
      return {cell.second, false};
    }
    cell = {key, next};
    ++size_;
    return {next, true};
  }
  int32_t find(const void* key) const {
    if (cells_.empty()) {
      return -1;
    }
    const auto& cell = const_cast<PointerMap*>(this)->find_cell(key);
    return cell.first == key ? cell.second : -1;
  }

 private:
  std::pair<const void*, int32_t>& find_cell(const void* key) {
    size_t place = (reinterpret_cast<uintptr_t>(key) >> 4) * 0x9e3779b97f4a7c15ULL >> 20;
    for (;; ++place) {
      auto& cell = cells_[place & (cells_.size() - 1)];
      if (cell.first == key || cell.first == nullptr) {
        return cell;
      }
    }
  }
  void grow() {
    std::vector<std::pair<const void*, int32_t>> before(cells_.empty() ? 1024 : 2 * cells_.size(), {nullptr, -1});
    before.swap(cells_);
    for (const auto& cell : before) {
      if (cell.first) {
        find_cell(cell.first) = cell;
      }
    }
  }

  std::vector<std::pair<const void*, int32_t>> cells_;
  size_t size_ = 0;
};

} // namespace gradc
