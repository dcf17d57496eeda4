// Registers the walk of the live graph, its capture and its replay with Python.
#pragma once

#include <torch/csrc/utils/pybind.h>

namespace gradc {

void bind_engine(pybind11::module_& module);

} // namespace gradc
