// The binding of this room: gradc._C.Walk, and Unsupported, which it raises.
#pragma once

#include <torch/csrc/utils/pybind.h>

namespace gradc {

void bind_walk(pybind11::module_& module);

} // namespace gradc
