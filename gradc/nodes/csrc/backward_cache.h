// Compiled backwards of one segment of a region, each kept under what it was compiled for: the form of the gradients that come in,
// which are needed, and the ambient state of torch.
//
//     BackwardCache: Key -> CompiledBackward
#pragma once

#include "executor/core/csrc/plan.h"
#include "nodes/csrc/key.h"

#include <cstdint>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <utility>
#include <tuple>
#include <vector>

namespace gradc {

// A compiled backward: the plan takes the defined tangents, the saved tensors at `saved`, and the symbols. `released` are
// the saved tensors that are freed with it; of those that it does not read, `unread`, eager checks the versions all the same.
// `views` are gradients that the engine must see as views: to any other it adds in place, in the memory that it lies in. Of
// `plain_views` it is to do so where others send to the same place, since it counts what is written into the sum. `recounted` are
// gradients, the version counters that eager leaves in them, and the tangents that eager has written over them where nobody else
// holds these; -1: none.
struct CompiledBackward {
  std::shared_ptr<Plan> plan;
  std::vector<int64_t> saved;
  std::vector<int64_t> released;
  bool frees_hidden = false;
  std::vector<int64_t> views;
  std::vector<int64_t> plain_views;
  std::vector<std::tuple<int64_t, int64_t, int64_t>> recounted;
  std::vector<int64_t> unread;
};

// The backwards of one segment by key. Bounded: sizes that keep changing push out what was there.
class BackwardCache {
 public:
  struct Found {
    bool is_known = false;
    std::shared_ptr<const CompiledBackward> backward;
  };
  Found find(const Key& key) const;
  std::vector<Key> keys() const;
  void keep(Key key, std::shared_ptr<const CompiledBackward> backward);

 private:
  static constexpr size_t kept = 512;
  mutable std::mutex mutex_;
  std::unordered_map<Key, std::shared_ptr<const CompiledBackward>, KeyHash> known_;
};

} // namespace gradc
