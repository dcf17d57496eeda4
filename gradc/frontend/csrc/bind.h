// Registers what Dynamo's guards call with Python.
#pragma once

#include <torch/csrc/utils/pybind.h>

namespace gradc {

void bind_class_guards(pybind11::module_& module);
void bind_guards(pybind11::module_& module);

} // namespace gradc
