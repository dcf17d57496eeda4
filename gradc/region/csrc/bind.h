// Registers the region and its segment nodes with Python.
#pragma once

#include <torch/csrc/utils/pybind.h>

namespace gradc {

void bind_segments(pybind11::module_& module);

} // namespace gradc
