// The Python faces of the extension's parts: each adds its classes and functions to gradc._C.
#pragma once

#include <torch/csrc/utils/pybind.h>

namespace gradc {

void bind_executor(pybind11::module_& module);

} // namespace gradc
