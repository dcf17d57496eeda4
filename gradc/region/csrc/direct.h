// A region as a builtin function.
#pragma once

#include "nodes/csrc/region_layout.h"

#include <torch/csrc/utils/pybind.h>

#include <memory>

namespace gradc {

// A function from a region's arguments to the tuple of its outputs: no Python runs in the usual call, but for views that are
// made again. `outputs` are the specifications that gradc.region.native_layout.direct_outputs writes. What the function cannot serve
// (hooks on leaves, modes that want to see each op) goes to `slow`.
pybind11::object make_direct(
    std::shared_ptr<RegionLayout> region, const pybind11::list& outputs, pybind11::object slow);

} // namespace gradc
