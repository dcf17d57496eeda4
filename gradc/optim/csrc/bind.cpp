#include "optim/csrc/bind.h"

#include "optim/csrc/update.h"

#include <pybind11/stl.h>

namespace py = pybind11;

namespace gradc {

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
      .def("run", &Update::run, py::arg("operands"), py::arg("numbers"), py::call_guard<py::gil_scoped_release>());
  module.def("advance", &advance, py::arg("steps"));
  module.def("why_not_steps", &why_not_steps, py::arg("steps"));
}

} // namespace gradc
