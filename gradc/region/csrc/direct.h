// A region as a builtin function.
#pragma once

#include "nodes/csrc/region_layout.h"
#include "region/csrc/straight_loss.h"

#include <torch/csrc/utils/pybind.h>

#include <cstddef>
#include <memory>
#include <vector>

namespace gradc {

// A function from a region's arguments to the tuple of its outputs: no Python runs in the usual call, but for views that are
// made again. `outputs` are the specifications that gradc.region.native_layout.direct_outputs writes. What the function cannot serve
// (hooks on leaves, modes that want to see each op) goes to `slow`; so does a call in which one of the arguments `leaves` has a
// history, or one of `unheard` a hook, and one inside of a checkpoint, unless what it saves `may_be_dropped`. `raised`: None, or what is
// called with each error: it raises another, gives what is returned in place of the outputs, or gives None. It is given the state of
// the CPU's generator before the call, too, if the region `draws`, else None. `joint`: null, or where the output with the number `loss`
// goes straight to backward. `numbers`: of a region with symbols what gives, for their values, the sizes that its nodes are made with,
// `num_shapes` of them, and behind these the sizes that it returns; `sizes` what views are made with. Else None.
pybind11::object make_direct(
    std::shared_ptr<RegionLayout> region,
    const pybind11::list& outputs,
    pybind11::object slow,
    pybind11::object raised,
    bool draws,
    bool may_be_dropped,
    std::vector<size_t> leaves,
    std::vector<size_t> unheard,
    std::shared_ptr<const StraightLoss> joint,
    size_t loss,
    const pybind11::object& numbers,
    pybind11::object sizes,
    size_t num_shapes);

} // namespace gradc
