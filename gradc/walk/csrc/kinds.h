// What the walk knows of kinds of autograd nodes, as gradc/tape/node_facts.py does for what is compiled: which state of a node a key
// can show, and whether a recording can stand for it.
#pragma once

#include <torch/csrc/autograd/function.h>

#include <cstdint>

namespace gradc {

// `generated` is a node whose whole state `compiled_args` shows: torch generates it from derivatives.yaml.
enum class Kind : uint8_t { opaque, generated, leaf, slices, python };

Kind kind_of(const torch::autograd::Node& node);

// Whether the one number that the node saved as a tensor is a factor of its calls, under its own value: it can be found again there.
bool keeps_number(const torch::autograd::Node& node);

// Whether a recording can stand for the node, if nobody hooks it. A leaf is for the walk to judge.
bool is_capturable(const torch::autograd::Node& node, Kind kind);

} // namespace gradc
