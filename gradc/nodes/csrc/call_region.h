// One call of a compiled region: runs its forward, and hangs what comes out on nodes in torch's autograd graph, one per segment.
#pragma once

#include "nodes/csrc/segment_node.h"

#include <ATen/core/ivalue.h>

#include <cstdint>
#include <memory>
#include <vector>

namespace gradc {

// True if ops must reach the dispatcher one by one, or a saved-tensors hook wants what is packed: Python then decides. Not if a
// checkpoint drops what it packs, and that `may_be_dropped`.
bool is_watched(const std::vector<c10::IValue>& primals, bool may_be_dropped);

using Nodes = std::vector<c10::intrusive_ptr<torch::autograd::Node>>;

// The forward plan's values, and the segments' nodes that they hang on.
struct Called {
  std::vector<c10::IValue> values;
  Nodes segments;
};

// The forward plan's values.
std::vector<c10::IValue> run_forward(const RegionLayout& region, std::vector<c10::IValue> primals);

// Hangs the values on nodes, one per segment. `start` is the sequence number of the first node that eager makes in the call.
Nodes hang_on_nodes(
    const std::shared_ptr<const RegionLayout>& region,
    const std::vector<c10::IValue>& primals,
    const std::vector<c10::IValue>& values,
    const std::vector<int64_t>& shapes,
    uint64_t start);

// Runs the forward and builds the nodes. `shapes` are the bound shape values of this call (static regions have none).
Called call_region(
    const std::shared_ptr<const RegionLayout>& region,
    const std::vector<c10::IValue>& primals,
    const std::vector<int64_t>& shapes,
    uint64_t start);

// The nodes of the primals in the live order, null for the others. To be asked for before the forward runs: a view that it
// writes into has another node when it is next asked.
Nodes made_nodes(const RegionLayout& region, const std::vector<c10::IValue>& primals);

// Has the engine take what a call made for made in eager's order, by dealing out the sequence numbers anew, or eager's. `made` is what
// `made_nodes` gave, `start` the sequence number of the first node that the call made.
void put_in_order(
    const RegionLayout& region,
    const Nodes& made,
    const Nodes& segments,
    const torch::autograd::variable_list& outputs,
    uint64_t start);

} // namespace gradc
