// A backward pass through compiled segments alone, without what torch's Python does before the engine begins; and through one segment
// and the leaves behind it, without the engine.
#pragma once

struct _object; // PyObject

namespace gradc {

// Whether torch's Python does nothing in front of a pass that begins in this thread now but what is known: no other pass runs around
// it, nothing wants to see the ops, and this process was not forked off another one.
bool may_begin_without_python();

// Runs backward from `root`, as its method `backward()` without arguments does, into the leaves' gradients. False, and nothing has
// happened, where torch's Python would do anything else, for another kind of root, or where the pass would meet a node that is no
// segment.
bool backward_of_segments(_object* root);

} // namespace gradc
