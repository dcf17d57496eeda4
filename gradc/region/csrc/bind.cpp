// Regions as Python objects: made from a gradc.region.native_layout.RegionSpec, called with a list of primals.
#include "region/csrc/bind.h"

#include "csrc/convert.h"
#include "nodes/csrc/call_region.h"
#include "region/csrc/direct.h"
#include "region/csrc/straight_loss.h"
#include "region/csrc/region_spec.h"

#include <pybind11/stl.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_cpp_function.h>
#include <torch/csrc/jit/python/pybind_utils.h>

namespace py = pybind11;

namespace gradc {
namespace {

// The values, and the nodes of the segments if there is a live order to put them in.
py::tuple call(
    const std::shared_ptr<RegionLayout>& region,
    const py::sequence& primals,
    const std::vector<int64_t>& shapes,
    uint64_t start) {
  const auto [values, segments] = call_region(region, to_ivalues(primals), shapes, start);
  py::list results(values.size());
  for (size_t i = 0; i < values.size(); ++i) {
    results[i] = values[i].isTensor() ? to_python(values[i].toTensor()) : torch::jit::toPyObject(values[i]);
  }
  py::list nodes;
  for (size_t i = 0; i < segments.size() && !region->live_order.empty(); ++i) {
    nodes.append(py::reinterpret_steal<py::object>(torch::autograd::functionToPyObject(segments[i])));
  }
  return py::make_tuple(results, nodes);
}

py::object to_python(const std::optional<TangentForm>& tangent) {
  if (!tangent) {
    return py::none();
  }
  return py::make_tuple(tangent->dtype, py::tuple(py::cast(tangent->sizes)), py::tuple(py::cast(tangent->strides)), tangent->device);
}

py::dict to_python(const KeyParts& parts) {
  py::list tangents;
  for (const auto& tangent : parts.tangents) {
    tangents.append(to_python(tangent));
  }
  py::dict fields;
  fields["ambient"] = gradc::to_python(parts.ambient);
  fields["tangents"] = tangents;
  fields["needed"] = parts.needed;
  fields["adds_up"] = parts.adds_up;
  fields["stealable"] = parts.stealable;
  return fields;
}

py::list keys(const RegionLayout& region, size_t segment) {
  py::list keys;
  for (const auto& key : region.backwards.at(segment).keys()) {
    keys.append(to_python(parts_of(key)));
  }
  return keys;
}

} // namespace

void bind_region(py::module_& module) {
  py::class_<RegionLayout, std::shared_ptr<RegionLayout>>(
      module, "Region", "A region's forward and its live nodes: called with primals, bound shapes and eager's first sequence number.")
      .def(py::init(&make_region))
      .def("__call__", torch::wrap_pybind_function(call))
      .def_property_readonly("was_expanded", [](const RegionLayout& region) { return region.was_expanded.load(); })
      .def("keys", keys, "(segment) -> the keys that backwards are kept under, each as the fields of a BackwardKey.")
      .def(
          "direct",
          make_direct,
          "(outputs, slow path, what to call with errors, whether it draws, whether a checkpoint may drop what it saves, which are leaves, "
          "which have no hooks, which output goes straight to backward, and where, and of symbols' values the numbers, the sizes, how many "
          "numbers are of nodes) -> a builtin function from primals to a tuple.",
          py::arg("outputs"),
          py::arg("slow"),
          py::arg("raised"),
          py::arg("draws"),
          py::arg("may_be_dropped"),
          py::arg("leaves"),
          py::arg("unheard"),
          py::arg("joint") = py::none(),
          py::arg("loss") = 0,
          py::arg("numbers") = py::none(),
          py::arg("sizes") = py::none(),
          py::arg("num_shapes") = 0);
  bind_straight_loss(module);
}

} // namespace gradc
