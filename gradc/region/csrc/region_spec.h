// Makes the native region of what Python says of it: the one place that reads a gradc.region.native_layout.RegionSpec.
#pragma once

#include "nodes/csrc/region_layout.h"

#include <torch/csrc/utils/pybind.h>

#include <memory>

namespace gradc {

// Raises a SpecError where the spec is not one.
std::shared_ptr<RegionLayout> make_region(const pybind11::object& spec);

} // namespace gradc
