// Registers with Python what Dynamo and its guards call.
#pragma once

#include <torch/csrc/utils/pybind.h>

namespace gradc {

void bind_callbacks(pybind11::module_& module);
void bind_definition_guards(pybind11::module_& module);
void bind_eager_entry(pybind11::module_& module);
void bind_entering(pybind11::module_& module);
void bind_guards(pybind11::module_& module);
void bind_leaves(pybind11::module_& module);
void bind_object_guards(pybind11::module_& module);

} // namespace gradc
