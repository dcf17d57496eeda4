// Builtin functions of Python's, of one argument: what is called so often that pybind11's way there would take longer than itself.
#pragma once

#include <torch/csrc/Exceptions.h>
#include <torch/csrc/utils/pybind.h>

#include <memory>
#include <utility>

namespace gradc {

inline PyObject* to_python(bool answer) {
  return PyBool_FromLong(answer);
}
inline PyObject* to_python(PyObject* owned) {
  return owned;
}

template <auto method, class T>
PyObject* call_builtin(PyObject* self, PyObject* argument) {
  HANDLE_TH_ERRORS
  auto& own = **static_cast<std::shared_ptr<T>*>(PyCapsule_GetPointer(self, nullptr));
  return to_python((own.*method)(argument));
  END_HANDLE_TH_ERRORS
}

// A function that calls the method of `own`, which it keeps: with the argument, borrowed, to a bool or a new reference.
template <auto method, class T>
pybind11::object builtin_of(std::shared_ptr<T> own, const char* name) {
  static PyMethodDef definition = {name, &call_builtin<method, T>, METH_O, nullptr};
  using Held = std::shared_ptr<T>;
  const pybind11::capsule capsule(new Held(std::move(own)), [](void* held) { delete static_cast<Held*>(held); });
  auto made = pybind11::reinterpret_steal<pybind11::object>(PyCFunction_New(&definition, capsule.ptr()));
  return made ? made : throw pybind11::error_already_set();
}

} // namespace gradc
