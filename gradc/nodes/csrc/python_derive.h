// What a segment's node asks Python for: a backward for a new key, or the gradients themselves.
#pragma once

#include "nodes/csrc/region_layout.h"

#include <torch/csrc/utils/pybind.h>

#include <memory>

namespace gradc {

// Calls into a gradc.backward.cache.BackwardCache. Takes the GIL.
std::unique_ptr<Derive> make_python_derive(pybind11::object backwards);

} // namespace gradc
