// The bindings of gradc._C.Candidate and gradc._C.Choice, and what a plan is given of them.
#pragma once

#include <torch/csrc/utils/pybind.h>

namespace gradc {

// Expects that gradc._C.Plan is bound.
void bind_choice(pybind11::module_& module);

} // namespace gradc
