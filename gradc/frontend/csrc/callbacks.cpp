// Callback: what Dynamo calls with a frame to compile, and from which the backend inside of it is found at once.
//
// At each frame, compiled or not, Dynamo goes from the callback down to the backend: it asks one wrapper after the other for the
// one within, until an object has none. Each time the attribute's name is made anew, is found in no cache of types, and at the
// end becomes the message of an error that nobody reads: 12,000 instructions. Here one question is answered, and one is not.
#include "frontend/csrc/bind.h"

namespace py = pybind11;

namespace gradc {
namespace {

constexpr const char* name_of_backend = "_torchdynamo_orig_backend";

bool is_backend_asked(PyObject* name) {
  return PyUnicode_CheckExact(name) && PyUnicode_CompareWithASCIIString(name, name_of_backend) == 0;
}

// As Python lays it out.
struct Callback {
  PyObject ob_base;
  PyObject* wrapped;
  PyObject* backend;
};

Callback& callback(PyObject* self) {
  return *reinterpret_cast<Callback*>(self);
}

PyObject* call(PyObject* self, PyObject* args, PyObject* kwargs) {
  return PyObject_Call(callback(self).wrapped, args, kwargs);
}

// All but the backend is the wrapped one's.
PyObject* get_attribute(PyObject* self, PyObject* name) {
  if (!is_backend_asked(name)) {
    return PyObject_GetAttr(callback(self).wrapped, name);
  }
  Py_INCREF(callback(self).backend);
  return callback(self).backend;
}

int set_attribute(PyObject* self, PyObject* name, PyObject* value) {
  return PyObject_SetAttr(callback(self).wrapped, name, value);
}

int traverse(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(Py_TYPE(self));
  Py_VISIT(callback(self).wrapped);
  Py_VISIT(callback(self).backend);
  return 0;
}

void deallocate(PyObject* self) {
  PyTypeObject* type = Py_TYPE(self);
  PyObject_GC_UnTrack(self);
  Py_DECREF(callback(self).wrapped);
  Py_DECREF(callback(self).backend);
  type->tp_free(self);
  Py_DECREF(type);
}

template <typename T>
PyType_Slot slot(int number, T* function) {
  return {number, reinterpret_cast<void*>(function)};
}

PyTypeObject* callback_type() {
  static PyType_Slot slots[] = {
      slot(Py_tp_call, call),
      slot(Py_tp_getattro, get_attribute),
      slot(Py_tp_setattro, set_attribute),
      slot(Py_tp_traverse, traverse),
      slot(Py_tp_dealloc, deallocate),
      {0, nullptr}};
  static PyType_Spec spec{
      "gradc._C.Callback",
      sizeof(Callback),
      0,
      Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION,
      slots};
  static auto* const type = reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&spec));
  return type ? type : throw py::error_already_set();
}

// An object's own attributes; the one that no backend has, without a message.
PyObject* get_attribute_of_backend(PyObject* self, PyObject* name) {
  if (is_backend_asked(name)) {
    PyErr_SetNone(PyExc_AttributeError);
    return nullptr;
  }
  return PyObject_GenericGetAttr(self, name);
}

py::object callback_to(const py::object& wrapped, const py::object& backend) {
  PyTypeObject* type = Py_TYPE(backend.ptr());
  if (type->tp_getattro == PyObject_GenericGetAttr && type->tp_flags & Py_TPFLAGS_HEAPTYPE) {
    type->tp_getattro = get_attribute_of_backend; // there is no more in it than before, so no cache of Python's is wrong
  }
  auto made = py::reinterpret_steal<py::object>(PyType_GenericAlloc(callback_type(), 0));
  if (!made) {
    throw py::error_already_set();
  }
  callback(made.ptr()).wrapped = wrapped.inc_ref().ptr();
  callback(made.ptr()).backend = backend.inc_ref().ptr();
  return made;
}

} // namespace

void bind_callbacks(py::module_& module) {
  module.def("callback_to", callback_to, py::arg("wrapped"), py::arg("backend"));
}

} // namespace gradc
