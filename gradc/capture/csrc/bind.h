// The bindings of this room: gradc._C.capture and trace, which tell a Python observer what a backward pass does.
#pragma once

#include <torch/csrc/utils/pybind.h>

namespace gradc {

void bind_capture(pybind11::module_& module);

} // namespace gradc
