// A backward pass through compiled segments, without what torch's Python does before the engine begins; and through one segment and the
// leaves behind it, without the engine.
#pragma once

#include <pybind11/pybind11.h>

namespace gradc {

// Whether torch's Python does nothing in front of a pass that begins in this thread now but what is known: no other pass runs around
// it, nothing wants to see the ops, and this process was not forked off another one.
bool may_begin_without_python();

// What runs `torch.autograd.backward` where a pass comes to compiled segments, and nothing about it is unusual. A builtin, called
// with all six arguments of that; it returns False, and nothing has happened, where torch's Python would do anything else.
// `is_left_to_torch` is a function in Python: (whether the pass comes to segments and leaves alone) -> whether nobody else is to
// see the pass.
pybind11::object backward_at_once(pybind11::function is_left_to_torch);

} // namespace gradc
