// entered: a function as Dynamo runs it, by the callback that is asked for each frame's code.
//
// What torch.compile returns does the same, and asks in Python whether anything unusual is in force: seventeen calls, a fifth of a
// small training step, and more where its code is no longer in the nearest cache. Who calls this has asked.
#include "frontend/csrc/bind.h"

#include <c10/core/impl/LocalDispatchKeySet.h>

#include <vector>

namespace py = pybind11;

namespace gradc {
namespace {

py::object called(PyObject* function, PyObject* argument) {
  auto result = py::reinterpret_steal<py::object>(PyObject_CallOneArg(function, argument));
  return result ? result : throw py::error_already_set();
}

// What is called, and with what: in the order in which Python gives it. The depth is that of torch.func's transforms.
struct Entry {
  PyObject *function, *callback, *number, *hooks, *set_eval_frame, *set_number, *get_depth, *set_depth;
  explicit Entry(PyObject* parts)
      : function(PyTuple_GET_ITEM(parts, 0)),
        callback(PyTuple_GET_ITEM(parts, 1)),
        number(PyTuple_GET_ITEM(parts, 2)),
        hooks(PyTuple_GET_ITEM(parts, 3)),
        set_eval_frame(PyTuple_GET_ITEM(parts, 4)),
        set_number(PyTuple_GET_ITEM(parts, 5)),
        get_depth(PyTuple_GET_ITEM(parts, 6)),
        set_depth(PyTuple_GET_ITEM(parts, 7)) {}
};

template <typename Function>
void call_and_keep(py::error_scope& kept, const Function& function) {
  try {
    function();
  } catch (py::error_already_set& error) {
    if (kept.type) {
      error.discard_as_unraisable("gradc: leaving compiled code");
    } else {
      error.restore();
      PyErr_Fetch(&kept.type, &kept.value, &kept.trace);
    }
  }
}

// Dynamo's state of this thread while the function runs, and then what it was, whether the function returned or raised.
class Inside {
 public:
  explicit Inside(const Entry& entry) : entry_(entry), outer_(called(entry.set_eval_frame, Py_None)) {
    try {
      for (const py::handle enter : py::reinterpret_borrow<py::list>(entry.hooks)) {
        leave_.push_back(enter());
      }
      number_ = called(entry.set_number, entry.number);
      depth_ = py::reinterpret_steal<py::object>(PyObject_CallNoArgs(entry.get_depth));
      called(entry.set_eval_frame, entry.callback);
    } catch (...) {
      called(entry.set_eval_frame, outer_.ptr());
      throw;
    }
  }
  // An error of what is called here, such as Ctrl-C, is the caller's unless the function has raised.
  ~Inside() {
    py::error_scope kept;
    call_and_keep(kept, [this] { called(entry_.set_eval_frame, Py_None); });
    for (const py::object& leave : leave_) {
      call_and_keep(kept, leave);
    }
    call_and_keep(kept, [this] { called(entry_.set_depth, depth_.ptr()); });
    call_and_keep(kept, [this] { called(entry_.set_number, number_.ptr()); });
    c10::impl::_force_tls_local_dispatch_key_set(keys_);
    call_and_keep(kept, [this] { called(entry_.set_eval_frame, outer_.ptr()); });
  }
  Inside(const Inside&) = delete;
  Inside& operator=(const Inside&) = delete;
  Inside(Inside&&) = delete;
  Inside& operator=(Inside&&) = delete;

 private:
  const Entry& entry_;
  const c10::impl::LocalDispatchKeySet keys_ = c10::impl::tls_local_dispatch_key_set();
  py::object outer_, number_, depth_;
  std::vector<py::object> leave_;
};

PyObject* call_inside(PyObject* self, PyObject* const* arguments, Py_ssize_t count, PyObject* names) {
  const Entry entry(self);
  PyObject* result = nullptr;
  try {
    const Inside inside(entry);
    result = PyObject_Vectorcall(entry.function, arguments, count, names);
  } catch (py::error_already_set& error) { // on the way in
    error.restore();
  }
  if (result && PyErr_Occurred()) {
    Py_CLEAR(result);
  }
  return result;
}

PyMethodDef entered_method = {
    "gradc_entered",
    reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(&call_inside)),
    METH_FASTCALL | METH_KEYWORDS,
    nullptr};

py::object entered(const py::tuple& parts) {
  return py::reinterpret_steal<py::object>(PyCFunction_New(&entered_method, parts.ptr()));
}

} // namespace

void bind_entering(py::module_& module) {
  module.def("entered", entered, py::arg("parts"));
}

} // namespace gradc
