// The bindings of this room: gradc._C.Region.
#pragma once

#include <torch/csrc/utils/pybind.h>

namespace gradc {

void bind_region(pybind11::module_& module);

} // namespace gradc
