#include "region/csrc/straight_loss.h"

#include "csrc/builtin.h"
#include "nodes/csrc/joint_call.h"
#include "nodes/csrc/run_segments.h"

#include <torch/csrc/autograd/python_variable.h>

#include <utility>

namespace py = pybind11;

namespace gradc {

StraightLoss::StraightLoss(py::object torchs, py::function may_run)
    : torchs_(std::move(torchs)), code_(torchs_.attr("__code__")), may_run_(std::move(may_run)) {}

py::object StraightLoss::begin() {
  is_on_ = true;
  return builtin_of<&StraightLoss::call>(shared_from_this(), "gradc_backward");
}

PyObject* StraightLoss::call(PyObject* method) const {
  if (run(method)) {
    Py_RETURN_NONE;
  }
  return PyObject_CallNoArgs(method);
}

// False where the method itself has to be called. The loss then has its history.
bool StraightLoss::run(PyObject* method) const {
  auto waiting = ForwardBackwardCall::take();
  if (!waiting) {
    return false;
  }
  const bool is_torchs = PyMethod_Check(method) && PyMethod_GET_FUNCTION(method) == torchs_.ptr() &&
      PyFunction_GET_CODE(torchs_.ptr()) == code_.ptr();
  const bool is_usual = is_torchs && PyMethod_GET_SELF(method) && THPVariable_Check(PyMethod_GET_SELF(method)) &&
      THPVariable_Unpack(PyMethod_GET_SELF(method)).is_same(waiting->loss()) && may_begin_without_python();
  if (is_usual && py::cast<bool>(may_run_())) {
    bool is_done = false;
    {
      const py::gil_scoped_release no_gil;
      is_done = waiting->run();
    }
    if (is_done) {
      ++num_run_;
      num_joined_ += waiting->is_joined();
      waiting->join();
      return true;
    }
  }
  waiting->hang();
  return false;
}

void bind_straight_loss(py::module_& module) {
  py::class_<StraightLoss, std::shared_ptr<StraightLoss>>(module, "StraightLoss", "Where bytecode takes a loss straight to backward().")
      .def(py::init<py::object, py::function>(), "(torch.Tensor.backward, () -> whether it would take its usual course)")
      .def_static("num_run", &StraightLoss::num_run, "() -> how many joint backwards ran in this process")
      .def_static("num_joined", &StraightLoss::num_joined, "() -> how many of these ran as one plan with the forward")
      .def("begin", &StraightLoss::begin, "() -> what to call with the loss's method in place of it");
}

} // namespace gradc
