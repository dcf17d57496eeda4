// What Python asks of live nodes: about hooks, casts and histories.
#include "nodes/csrc/bind.h"

#include "csrc/convert.h"
#include "csrc/plain.h"
#include "csrc/torch_internals.h"
#include "nodes/csrc/accumulate.h"
#include "nodes/csrc/autocast_cache.h"
#include "nodes/csrc/hooks.h"
#include "nodes/csrc/segment_node.h"

#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_cpp_function.h>
#include <torch/csrc/autograd/python_variable.h>

namespace py = pybind11;

namespace gradc {
namespace {

py::object written_into_view(const py::object& node) {
  return py::reinterpret_steal<py::object>(torch::autograd::functionToPyObject(node_in_copy_slices(node.ptr())));
}

bool consists_of_segments_only(const py::sequence& roots) {
  std::vector<at::Tensor> tensors;
  for (const auto& root : roots) {
    if (!THPVariable_Check(root.ptr())) { // an edge of the graph
      return false;
    }
    tensors.push_back(THPVariable_Unpack(root.ptr()));
  }
  return consists_of_segments(tensors);
}

} // namespace

void bind_nodes(py::module_& module) {
  module.def("cached_cast", torch::wrap_pybind_function(cached_cast), "(leaf, dtype) -> autocast's copy of it");
  module.def(
      "has_gradient_hooks",
      [](const py::sequence& primals) { return has_gradient_hooks(to_ivalues(primals)); },
      "(primals) -> whether something runs when the gradient of one of the leaves arrives");
  module.def(
      "node_in_copy_slices",
      torch::wrap_pybind_function(written_into_view),
      "(CopySlices) -> the node of the op that wrote into a view");
  module.def(
      "consists_of_segments",
      torch::wrap_pybind_function(consists_of_segments_only),
      "(roots) -> whether a backward pass from there meets segments and leaves only");
  module.def(
      "is_plain",
      [](const at::Tensor& tensor) { return is_plain(tensor); },
      "(tensor) -> whether a Program may take it for what its memory holds");
  module.def("show_hidden_edges", show_hidden_edges, "() -> None; see accumulate.h");
}

} // namespace gradc
