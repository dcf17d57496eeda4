#include "nodes/csrc/backward_cache.h"

#include <utility>

namespace gradc {

BackwardCache::Found BackwardCache::find(const Key& key) const {
  const std::lock_guard lock(mutex_);
  const auto found = known_.find(key);
  return found == known_.end() ? Found{} : Found{true, found->second};
}

std::vector<Key> BackwardCache::keys() const {
  const std::lock_guard lock(mutex_);
  std::vector<Key> keys;
  for (const auto& known : known_) {
    keys.push_back(known.first);
  }
  return keys;
}

void BackwardCache::keep(Key key, std::shared_ptr<const CompiledBackward> backward) {
  decltype(known_) dropped; // without the lock: it takes the GIL, which a thread that waits for the lock may hold
  const std::lock_guard lock(mutex_);
  if (known_.size() >= kept) {
    known_.swap(dropped);
  }
  known_.emplace(std::move(key), std::move(backward));
}

} // namespace gradc
