// Segments as the nodes that they stand for: where nodes of several threads meet in one backward pass.
//
// The engine takes ready nodes by their sequence numbers, which each thread counts for itself. Nodes made in one thread are run later
// ones first, and a segment may stand for a run of them. Backward of other devices than the CPU runs in a thread of the device's: what it
// makes under create_graph has numbers that say nothing of when it was made, and eager may run such nodes between those of one segment.
// Before a pass in which that can happen, such a segment is expanded: each of its nodes becomes one of the live graph, with eager's number,
// and what led to the segment leads there.
#pragma once

#include "nodes/csrc/segment_node.h"

#include <pybind11/pybind11.h>

namespace gradc {

// To be called before a pass from `roots` to `inputs`, which are tensors. `creates_graph`: of the pass.
void expand_segments(const torch::autograd::variable_list& roots, const torch::autograd::variable_list& inputs, bool creates_graph);

// Calls `function` in a thread of its own, in the state of this one: the nodes that it makes leave this thread's count alone.
void call_elsewhere(const pybind11::function& function);

// All nodes that a pass from `roots` may come to get numbers so much higher, but for those of leaves, which have none.
void move_on(const torch::autograd::variable_list& roots, uint64_t number);

// Has this thread's next node get `number`, if it would get a lower one.
void count_nodes_to(uint64_t number);

} // namespace gradc
