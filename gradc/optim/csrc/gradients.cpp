#include "optim/csrc/gradients.h"

#include "csrc/listening.h"
#include "executor/cpu/csrc/memory.h"
#include "optim/csrc/group_step.h"
#include "optim/csrc/names.h"

#include <torch/csrc/autograd/python_variable.h>

#include <utility>

namespace py = pybind11;

namespace gradc {
namespace {

// The attributes of an optimizer that hides none of those that are asked for here behind its class; null for another one.
py::object plain_attributes(PyObject* optimizer) {
  PyTypeObject* type = Py_TYPE(optimizer);
  const auto hides = [type](const py::str& name) { return _PyType_Lookup(type, name.ptr()) != nullptr; };
  const bool is_plain = type->tp_getattro == PyObject_GenericGetAttr && type->tp_dictoffset != 0 && !hides(names().groups) &&
      !hides(names().defaults) && !hides(names().profiled);
  return is_plain ? attributes_of(optimizer) : py::object();
}

bool clear_all(PyObject* groups) {
  for (Py_ssize_t place = 0; place < PyList_GET_SIZE(groups); ++place) {
    const auto group = py::reinterpret_borrow<py::object>(PyList_GET_ITEM(groups, place));
    if (!PyDict_CheckExact(group.ptr())) {
      return false;
    }
    const auto params = py::reinterpret_borrow<py::object>(item(group.ptr(), names().params));
    if (!params || !clear_gradients(params.ptr())) {
      return false;
    }
  }
  return true;
}

} // namespace

bool clear_gradients(PyObject* params) {
  if (!PyList_CheckExact(params)) {
    return false;
  }
  for (Py_ssize_t place = 0; place < PyList_GET_SIZE(params); ++place) {
    PyObject* param = PyList_GET_ITEM(params, place);
    if (!is_leaf_of_torchs(param)) {
      return false;
    }
    const auto kept = py::reinterpret_borrow<py::object>(param); // what dies may run Python
    const at::Tensor& leaf = THPVariable_Unpack(param);
    if (leaf.grad().defined()) {
      retire(std::exchange(leaf.mutable_grad(), at::Tensor()));
    }
  }
  return true;
}

QuickZeroGrad::QuickZeroGrad(py::object grad, py::function set_eval_frame)
    : grad_(std::move(grad)), set_eval_frame_(std::move(set_eval_frame)) {}

bool QuickZeroGrad::run(PyObject* optimizer) const {
  if (is_anybody_listening() || !are_gradients_as_usual()) {
    return false;
  }
  const py::object attributes = plain_attributes(optimizer);
  if (!attributes) {
    return false;
  }
  const auto groups = py::reinterpret_borrow<py::object>(item(attributes.ptr(), names().groups));
  PyObject* defaults = item(attributes.ptr(), names().defaults);
  if (!groups || !PyList_CheckExact(groups.ptr()) || !defaults || !PyDict_CheckExact(defaults) ||
      !item(attributes.ptr(), names().profiled)) { // without, torch's own completes the optimizer
    return false;
  }
  const py::object dynamo = set_eval_frame_(py::none());
  const bool is_done = clear_all(groups.ptr());
  set_eval_frame_(dynamo);
  return is_done;
}

bool QuickZeroGrad::are_gradients_as_usual() const {
  static PyObject* const name = PyUnicode_InternFromString("grad");
  const auto is_as_usual = [&](PyObject* type) { return _PyType_Lookup(reinterpret_cast<PyTypeObject*>(type), name) == grad_.ptr(); };
  return is_as_usual(THPVariableClass) && is_as_usual(ParameterClass);
}

} // namespace gradc
