// The key of a compiled backward, as native nodes have it: all that can change what it does, besides the values of tensors.
//
//     make_key(autocast, tangents, num_entries, needed) -> Key, in the state that there is now
//     complete(key, adds_up, stealable)    -> Key of a node's own cache
//     parts_of(complete key)               -> KeyParts, which gradc.backward.key prints
//
// A key is numbers in a row, so that looking it up is cheap. Counts stand before lists: no two states have one key.
#pragma once

#include "csrc/ambient.h"

#include <torch/csrc/autograd/variable.h>

#include <cstdint>
#include <optional>
#include <vector>

namespace gradc {

using Key = std::vector<int64_t>;

struct KeyHash {
  size_t operator()(const Key& key) const noexcept;
};

// How one incoming gradient is laid out.
struct TangentForm {
  at::ScalarType dtype = at::kFloat;
  at::Device device = at::kCPU;
  std::vector<int64_t> sizes;
  std::vector<int64_t> strides;
};

// The same as BackwardKey in gradc/backward/key.py, field by field.
struct KeyParts {
  Ambient ambient;
  std::vector<std::optional<TangentForm>> tangents; // nullopt: not defined
  std::vector<bool> needed;
  bool adds_up = false;
  std::vector<int64_t> stealable;
};

// `autocast`: what the region's setting fixes; nullopt: as it is now. An entry for which no gradient comes has an undefined one.
Key make_key(
    const std::optional<Ambient::Autocast>& autocast,
    const torch::autograd::variable_list& tangents,
    size_t num_entries,
    const std::vector<bool>& needed);

Key complete(Key key, bool adds_up, const std::vector<int64_t>& stealable);

KeyParts parts_of(const Key& key);

} // namespace gradc
