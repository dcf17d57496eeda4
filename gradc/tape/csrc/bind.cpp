// What Python asks of views: see view_meta.h.
#include "tape/csrc/bind.h"

#include "tape/csrc/view_meta.h"

#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_cpp_function.h>
#include <torch/csrc/autograd/variable.h>

namespace gradc {
namespace {

pybind11::tuple gradient_edge(const at::Tensor& tensor) {
  TORCH_CHECK(tensor.requires_grad(), "gradient_edge: a tensor that requires no gradient has none");
  const auto edge = torch::autograd::impl::gradient_edge(tensor);
  const auto node = pybind11::reinterpret_steal<pybind11::object>(torch::autograd::functionToPyObject(edge.function));
  return pybind11::make_tuple(node, edge.input_nr);
}

} // namespace

void bind_tape(pybind11::module_& module) {
  module.def("as_view_of", torch::wrap_pybind_function(as_view_of), "(base, tensor) -> a view; see view_meta.h");
  module.def("forget_history", torch::wrap_pybind_function(forget_history), "(tensor) -> None; see view_meta.h");
  module.def("forget_view_function", torch::wrap_pybind_function(forget_view_function), "(view) -> None; see view_meta.h");
  module.def("gradient_edge", torch::wrap_pybind_function(gradient_edge), "(tensor) -> (node, number of the node's input)");
  module.def("is_view_outdated", torch::wrap_pybind_function(is_view_outdated), "(view) -> bool; see view_meta.h");
  module.def("outdate_view", torch::wrap_pybind_function(outdate_view), "(view) -> None; see view_meta.h");
}

} // namespace gradc
