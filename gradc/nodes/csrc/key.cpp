#include "nodes/csrc/key.h"

#include <algorithm>
#include <functional>

namespace gradc {

using torch::autograd::variable_list;

namespace {

constexpr int64_t undefined = -1; // in the place of a tangent's number of dimensions

void add_tangent(Key& key, const at::Tensor& tangent) {
  if (!tangent.defined()) {
    key.push_back(undefined);
    return;
  }
  key.push_back(tangent.dim());
  key.push_back(static_cast<int64_t>(tangent.scalar_type()));
  key.push_back(static_cast<int64_t>(tangent.device().type()));
  key.push_back(tangent.device().index());
  key.insert(key.end(), tangent.sizes().begin(), tangent.sizes().end());
  key.insert(key.end(), tangent.strides().begin(), tangent.strides().end());
}

// Takes numbers off the front of a key.
class Reader {
 public:
  explicit Reader(const Key& key) : next_(key.begin()), end_(key.end()) {}

  int64_t number() {
    TORCH_INTERNAL_ASSERT(next_ != end_, "a key that ends too early");
    return *next_++;
  }

  std::vector<int64_t> numbers(int64_t count) {
    std::vector<int64_t> taken(count);
    std::generate(taken.begin(), taken.end(), [this] { return number(); });
    return taken;
  }

  template <size_t count>
  std::array<int64_t, count> numbers() {
    std::array<int64_t, count> taken;
    std::generate(taken.begin(), taken.end(), [this] { return number(); });
    return taken;
  }

  std::optional<TangentForm> tangent() {
    const auto dim = number();
    if (dim == undefined) {
      return std::nullopt;
    }
    TangentForm form;
    form.dtype = static_cast<at::ScalarType>(number());
    const auto type = static_cast<at::DeviceType>(number());
    form.device = at::Device(type, static_cast<at::DeviceIndex>(number()));
    form.sizes = numbers(dim);
    form.strides = numbers(dim);
    return form;
  }

 private:
  Key::const_iterator next_;
  Key::const_iterator end_;
};

} // namespace

Key make_key(
    const std::optional<Ambient::Autocast>& autocast,
    const variable_list& tangents,
    size_t num_entries,
    const std::vector<bool>& needed) {
  Key key;
  key.reserve(16 + 8 * tangents.size() + needed.size());
  const auto ambient = Ambient::read();
  const auto& in_force = autocast ? *autocast : ambient.autocast;
  key.insert(key.end(), in_force.begin(), in_force.end());
  const auto modes = ambient.modes();
  key.insert(key.end(), modes.begin(), modes.end());
  key.push_back(static_cast<int64_t>(needed.size()));
  key.insert(key.end(), needed.begin(), needed.end());
  const size_t missing = num_entries - std::min(num_entries, tangents.size());
  key.push_back(static_cast<int64_t>(tangents.size() + missing));
  for (const auto& tangent : tangents) {
    add_tangent(key, tangent);
  }
  key.insert(key.end(), missing, undefined);
  return key;
}

Key complete(Key key, bool adds_up, const std::vector<int64_t>& stealable) {
  key.push_back(adds_up);
  key.push_back(static_cast<int64_t>(stealable.size()));
  key.insert(key.end(), stealable.begin(), stealable.end());
  return key;
}

KeyParts parts_of(const Key& key) {
  Reader reader(key);
  KeyParts parts;
  const auto autocast = reader.numbers<Ambient::devices.size()>();
  parts.ambient = Ambient::of(autocast, reader.numbers<Ambient::num_modes>());
  const auto needed = reader.numbers(reader.number());
  parts.needed.assign(needed.begin(), needed.end());
  parts.tangents.resize(reader.number());
  std::generate(parts.tangents.begin(), parts.tangents.end(), [&] { return reader.tangent(); });
  parts.adds_up = reader.number() != 0;
  parts.stealable = reader.numbers(reader.number());
  return parts;
}

size_t KeyHash::operator()(const Key& key) const noexcept {
  size_t hash = key.size();
  for (const auto part : key) {
    hash ^= std::hash<int64_t>()(part) + 0x9e3779b97f4a7c15ULL + (hash << 6) + (hash >> 2);
  }
  return hash;
}

} // namespace gradc
