// eager_entry: what is called in place of a function for which eager was chosen, with its backward passes captured or not: that, as long
// as its quota lasts.
//
// Asked in Python, the same takes five microseconds a call, a tenth of what a small policy takes.
#include "frontend/csrc/bind.h"

#include <ATen/SavedTensorHooks.h>
#include <c10/core/GradMode.h>

namespace py = pybind11;

namespace gradc {
namespace {

// In the order in which Python gives it. The quotas are lists: how many calls are left, and whether their backward passes are captured.
// `changes` is a list of one number: what it is when this thread suspends captures, which is to be done again once it is another.
struct EagerParts {
  PyObject *eager, *captured, *otherwise, *recording, *plain, *suspend, *resume, *changes, *listeners, *counters, *group, *kind;
  explicit EagerParts(PyObject* parts)
      : eager(PyTuple_GET_ITEM(parts, 0)),
        captured(PyTuple_GET_ITEM(parts, 1)),
        otherwise(PyTuple_GET_ITEM(parts, 2)),
        recording(PyTuple_GET_ITEM(parts, 3)),
        plain(PyTuple_GET_ITEM(parts, 4)),
        suspend(PyTuple_GET_ITEM(parts, 5)),
        resume(PyTuple_GET_ITEM(parts, 6)),
        changes(PyTuple_GET_ITEM(parts, 7)),
        listeners(PyTuple_GET_ITEM(parts, 8)),
        counters(PyTuple_GET_ITEM(parts, 9)),
        group(PyTuple_GET_ITEM(parts, 10)),
        kind(PyTuple_GET_ITEM(parts, 11)) {}
};

py::object new_reference(PyObject* made) {
  if (!made) {
    throw py::error_already_set();
  }
  return py::reinterpret_steal<py::object>(made);
}

// Takes one of the quota; false if nothing is left.
bool take_one(PyObject* quota) {
  const long long left = PyLong_AsLongLong(PyList_GET_ITEM(quota, 0));
  return left > 0 && PyList_SetItem(quota, 0, new_reference(PyLong_FromLongLong(left - 1)).release().ptr()) == 0;
}

void count_call(const EagerParts& entry) {
  const py::object names = new_reference(PyObject_GetItem(entry.counters, entry.group));
  const py::object number = new_reference(PyObject_GetItem(names.ptr(), entry.kind));
  const py::object next = new_reference(PyNumber_Add(number.ptr(), new_reference(PyLong_FromLong(1)).ptr()));
  if (PyDict_SetItem(names.ptr(), entry.kind, next.ptr()) < 0) {
    throw py::error_already_set();
  }
}

void suspend_captures(const EagerParts& entry) {
  thread_local long long suspended_at = -1;
  const long long now = PyLong_AsLongLong(PyList_GET_ITEM(entry.changes, 0));
  if (now != suspended_at) {
    new_reference(PyObject_CallNoArgs(entry.suspend));
    suspended_at = now;
  }
}

// Checkpoint counts what is saved, and may have run a call compiled: what was, must be again. And who listens is told in Python.
bool may_run_eagerly(const EagerParts& entry) {
  return PyList_GET_SIZE(entry.listeners) == 0 && at::SavedTensorDefaultHooks::get_tls_state().stack.empty();
}

PyObject* call_eagerly(PyObject* self, PyObject* const* arguments, Py_ssize_t number, PyObject* names) {
  const EagerParts entry(self);
  PyObject* run = entry.eager;
  try {
    PyObject* const quota = c10::GradMode::is_enabled() ? entry.recording : entry.plain;
    if (!may_run_eagerly(entry) || !take_one(quota)) {
      return PyObject_Vectorcall(entry.otherwise, arguments, number, names);
    }
    count_call(entry);
    if (PyList_GET_ITEM(quota, 1) == Py_True) {
      run = entry.captured;
      new_reference(PyObject_CallNoArgs(entry.resume));
    } else {
      suspend_captures(entry);
    }
  } catch (py::error_already_set& error) {
    error.restore();
    return nullptr;
  }
  return PyObject_Vectorcall(run, arguments, number, names);
}

PyMethodDef eager_entry_method = {
    "gradc_eager_entry",
    reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(&call_eagerly)),
    METH_FASTCALL | METH_KEYWORDS,
    nullptr};

py::object eager_entry(const py::tuple& parts) {
  return new_reference(PyCFunction_New(&eager_entry_method, parts.ptr()));
}

} // namespace

void bind_eager_entry(py::module_& module) {
  module.def("eager_entry", eager_entry, py::arg("parts"));
}

} // namespace gradc
