// Segments as the nodes that they stand for: where nodes of several threads meet in one backward pass.
//
// The engine takes ready nodes by their sequence numbers, which each thread counts for itself. Nodes made in one thread are run later
// ones first, and a segment may stand for a run of them. Backward of other devices than the CPU runs in a thread of the device's: what it
// makes under create_graph has numbers that say nothing of when it was made, and eager may run such nodes between those of one segment.
// Before a pass in which that can happen, such a segment is expanded: each of its nodes becomes one of the live graph, with eager's number,
// and what led to the segment leads there.
#pragma once

#include "nodes/csrc/segment_node.h"

namespace gradc {

// To be called before a pass from `roots` to `inputs`, which are tensors. `creates_graph`: of the pass.
void expand_segments(const torch::autograd::variable_list& roots, const torch::autograd::variable_list& inputs, bool creates_graph);

} // namespace gradc
