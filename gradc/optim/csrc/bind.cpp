#include "optim/csrc/bind.h"

#include "optim/csrc/gathered.h"
#include "optim/csrc/gradients.h"
#include "optim/csrc/update.h"

#include <ATen/record_function.h>
#include <pybind11/stl.h>
#include <torch/csrc/autograd/python_variable.h>

#include <algorithm>

namespace py = pybind11;

namespace gradc {
namespace {

bool has_subclass(const std::vector<py::list>& columns) {
  const auto is_of_subclass = [](py::handle value) { return !value.is_none() && !THPVariable_CheckExact(value.ptr()); };
  return std::any_of(columns.begin(), columns.end(), [&](const py::list& column) {
    return std::any_of(column.begin(), column.end(), is_of_subclass);
  });
}

} // namespace

void bind_optim(py::module_& module) {
  py::enum_<UpdateOp>(module, "UpdateOp", "One call of ATen's in an optimizer's formula.")
      .value("neg", UpdateOp::neg)
      .value("abs", UpdateOp::abs)
      .value("reciprocal", UpdateOp::reciprocal)
      .value("mul_values", UpdateOp::mul_values)
      .value("div_values", UpdateOp::div_values)
      .value("mul", UpdateOp::mul)
      .value("add_number", UpdateOp::add_number)
      .value("div", UpdateOp::div)
      .value("sqrt", UpdateOp::sqrt)
      .value("add", UpdateOp::add)
      .value("lerp", UpdateOp::lerp)
      .value("addcmul", UpdateOp::addcmul)
      .value("addcdiv", UpdateOp::addcdiv)
      .value("maximum", UpdateOp::maximum);
  py::class_<Operation>(module, "Operation")
      .def(py::init([](UpdateOp op, int32_t out, int32_t a, int32_t b, int32_t c, int32_t number) {
             return Operation{op, out, a, b, c, number};
           }),
           py::arg("op"), py::arg("out"), py::arg("a"), py::arg("b") = -1, py::arg("c") = -1, py::arg("number") = -1);
  py::class_<Update>(module, "Update", "An optimizer's formula, run over each parameter in one pass.")
      .def(py::init<size_t, size_t, std::vector<Operation>>(), py::arg("num_operands"), py::arg("num_scratch"), py::arg("operations"))
      .def("why_not", &Update::why_not, py::arg("operands"))
      .def(
          "run", &Update::run, py::arg("operands"), py::arg("numbers"), py::arg("number_of"),
          py::arg("scalars"), py::arg("values"), py::call_guard<py::gil_scoped_release>());
  py::class_<Gathered>(module, "Gathered", "The tensors of one parameter group that a step works on.")
      .def("why_not", &Gathered::why_not, py::arg("update"))
      .def("next_counts", &Gathered::next_counts)
      .def("run", &Gathered::run, py::arg("update"), py::arg("numbers"), py::call_guard<py::gil_scoped_release>())
      .def("dtypes", &Gathered::dtypes);
  module.def(
      "gather", [](const py::object& params, const py::object& state, const std::vector<std::string>& keys) {
        return Gathered::make(params.ptr(), state.ptr(), keys);
      },
      py::arg("params"), py::arg("state"), py::arg("keys"));
  module.def(
      "clear_gradients", [](const py::object& params) { return clear_gradients(params.ptr()); }, py::arg("params"),
      "Set ``.grad`` to None, one after the other; False at the first tensor that is not as usual.");
  module.def("has_subclass", &has_subclass, py::arg("columns"), "True if a tensor in one of the lists is of a subclass of torch.Tensor's.");
  module.def("is_observed", &at::hasCallbacks, "True while a profiler or its like hears of every op of this thread.");
  module.def("next_counts", &next_counts, py::arg("steps"));
  module.def("why_not_scalars", &why_not_scalars, py::arg("scalars"));
}

} // namespace gradc
