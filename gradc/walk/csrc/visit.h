// What some frequent autograd nodes hold, read without compiled_args, which costs them more than their backward.
#pragma once

#include "walk/csrc/walk.h"

namespace gradc {

// Adds to the walk what the node holds, in the order of compiled_args. False: something was saved through hooks, and nothing has
// been added.
using Visitor = bool (*)(Walk&, LiveNode&);

// nullptr for a node that compiled_args has to read.
Visitor visitor_of(const Node& node);

} // namespace gradc
