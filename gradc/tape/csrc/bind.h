// The bindings of this room: what Python asks of views.
#pragma once

#include <torch/csrc/utils/pybind.h>

namespace gradc {

void bind_tape(pybind11::module_& module);

} // namespace gradc
