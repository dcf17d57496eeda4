// with_leaves: what makes leaves in Python, and then a call of compiled code that they are the last arguments of.
//
// As a function in Python it would be one that Dynamo must be kept from, which costs more than to make the leaves.
#include "frontend/csrc/bind.h"

#include <vector>

namespace py = pybind11;

namespace gradc {
namespace {

// What is called: (what makes the leaves, the compiled code, torch's switch of Dynamo in this thread).
struct Parts {
  PyObject *make, *compiled, *set_eval_frame;
  explicit Parts(PyObject* parts)
      : make(PyTuple_GET_ITEM(parts, 0)), compiled(PyTuple_GET_ITEM(parts, 1)), set_eval_frame(PyTuple_GET_ITEM(parts, 2)) {}
};

// The leaves, as a tuple; null where an error is set. Dynamo looks at no frame meanwhile.
py::object make_leaves(const Parts& parts, PyObject* const* arguments, Py_ssize_t count) {
  const auto callback = py::reinterpret_steal<py::object>(PyObject_CallOneArg(parts.set_eval_frame, Py_None));
  if (!callback) {
    return {};
  }
  auto made = py::reinterpret_steal<py::object>(PyObject_Vectorcall(parts.make, arguments, count, nullptr));
  const py::error_scope kept; // of what makes them
  const auto before = py::reinterpret_steal<py::object>(PyObject_CallOneArg(parts.set_eval_frame, callback.ptr()));
  return made;
}

PyObject* call_with_leaves(PyObject* self, PyObject* const* arguments, Py_ssize_t count) {
  const Parts parts(self);
  const py::object leaves = make_leaves(parts, arguments, count);
  if (!leaves) {
    return nullptr;
  }
  std::vector<PyObject*> all(arguments, arguments + count);
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(leaves.ptr()); ++i) {
    all.push_back(PyTuple_GET_ITEM(leaves.ptr(), i));
  }
  return PyObject_Vectorcall(parts.compiled, all.data(), all.size(), nullptr);
}

// Named as a region is, which Dynamo's bytecode calls without a wrapper.
PyMethodDef method = {
    "gradc_region", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(&call_with_leaves)), METH_FASTCALL, nullptr};

py::object with_leaves(const py::object& make, const py::object& compiled, const py::object& set_eval_frame) {
  const py::tuple parts = py::make_tuple(make, compiled, set_eval_frame);
  return py::reinterpret_steal<py::object>(PyCFunction_New(&method, parts.ptr()));
}

} // namespace

void bind_leaves(py::module_& module) {
  module.def("with_leaves", with_leaves, py::arg("make"), py::arg("compiled"), py::arg("set_eval_frame"));
}

} // namespace gradc
