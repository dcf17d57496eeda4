// The bindings of this room: what Python asks of live nodes.
#pragma once

#include <torch/csrc/utils/pybind.h>

namespace gradc {

void bind_nodes(pybind11::module_& module);

} // namespace gradc
