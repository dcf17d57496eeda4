#include "nodes/csrc/backward_cache.h"

#include "csrc/ambient.h"

#include <utility>

namespace gradc {

using torch::autograd::variable_list;

namespace {

void add_tangent(Key& key, const at::Tensor& tangent) {
  if (!tangent.defined()) {
    key.push_back(-1);
    return;
  }
  key.push_back(tangent.dim());
  key.push_back(static_cast<int64_t>(tangent.scalar_type()));
  key.push_back(static_cast<int64_t>(tangent.device().type()) << 8 | (tangent.device().index() & 0xff));
  key.insert(key.end(), tangent.sizes().begin(), tangent.sizes().end());
  key.insert(key.end(), tangent.strides().begin(), tangent.strides().end());
}

} // namespace

Key make_key(const Key& forced_autocast, const variable_list& tangents, const std::vector<bool>& needed) {
  Key key = forced_autocast;
  key.reserve(16 + 8 * tangents.size() + needed.size());
  const auto ambient = Ambient::read();
  if (forced_autocast.empty()) {
    key.insert(key.end(), ambient.autocast.begin(), ambient.autocast.end());
  }
  const auto modes = ambient.modes();
  key.insert(key.end(), modes.begin(), modes.end());
  for (const bool bit : needed) {
    key.push_back(bit);
  }
  for (const auto& tangent : tangents) {
    add_tangent(key, tangent);
  }
  return key;
}

size_t KeyHash::operator()(const Key& key) const noexcept {
  size_t hash = key.size();
  for (const auto part : key) {
    hash ^= std::hash<int64_t>()(part) + 0x9e3779b97f4a7c15ULL + (hash << 6) + (hash >> 2);
  }
  return hash;
}

BackwardCache::Found BackwardCache::find(const Key& key) const {
  const std::lock_guard lock(mutex_);
  const auto found = known_.find(key);
  return found == known_.end() ? Found{} : Found{true, found->second};
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
