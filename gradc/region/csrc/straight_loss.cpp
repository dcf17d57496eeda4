#include "region/csrc/straight_loss.h"

#include "csrc/ambient.h"
#include "csrc/listening.h"
#include "nodes/csrc/joint_call.h"

#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/python_variable.h>

#include <utility>

namespace py = pybind11;

namespace gradc {

StraightLoss::StraightLoss(py::object torchs, py::function may_run)
    : torchs_(std::move(torchs)), code_(torchs_.attr("__code__")), may_run_(std::move(may_run)) {}

py::object StraightLoss::begin() {
  static PyMethodDef method = {"gradc_backward", &StraightLoss::call, METH_O, nullptr};
  using Held = std::shared_ptr<const StraightLoss>;
  const py::capsule capsule(new Held(shared_from_this()), [](void* held) { delete static_cast<Held*>(held); });
  auto made = py::reinterpret_steal<py::object>(PyCFunction_New(&method, capsule.ptr()));
  if (!made) {
    throw py::error_already_set();
  }
  is_on_ = true;
  return made;
}

PyObject* StraightLoss::call(PyObject* self, PyObject* method) {
  HANDLE_TH_ERRORS
  const auto& own = *static_cast<std::shared_ptr<const StraightLoss>*>(PyCapsule_GetPointer(self, nullptr));
  if (own->run(method)) {
    Py_RETURN_NONE;
  }
  return PyObject_CallNoArgs(method);
  END_HANDLE_TH_ERRORS
}

// False where the method itself has to be called. The loss then has its history.
bool StraightLoss::run(PyObject* method) const {
  auto waiting = JointCall::take();
  if (!waiting) {
    return false;
  }
  const bool is_torchs = PyMethod_Check(method) && PyMethod_GET_FUNCTION(method) == torchs_.ptr() &&
      PyFunction_GET_CODE(torchs_.ptr()) == code_.ptr();
  const bool is_usual = is_torchs && PyMethod_GET_SELF(method) && THPVariable_Check(PyMethod_GET_SELF(method)) &&
      THPVariable_Unpack(PyMethod_GET_SELF(method)).is_same(waiting->loss()) && unsupported_mode().empty() && !is_anybody_listening() &&
      torch::autograd::get_current_graph_task_id() == -1;
  if (is_usual && py::cast<bool>(may_run_())) {
    bool is_done = false;
    {
      const py::gil_scoped_release no_gil;
      is_done = waiting->run();
    }
    if (is_done) {
      ++num_run_;
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
      .def("begin", &StraightLoss::begin, "() -> what to call with the loss's method in place of it");
}

} // namespace gradc
