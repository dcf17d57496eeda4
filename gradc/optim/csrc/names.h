// What an optimizer of torch's is made of, by the names of its attributes.
#pragma once

#include <pybind11/pybind11.h>

namespace gradc {

struct __attribute__((visibility("hidden"))) Names { // as all that holds pybind11's
  pybind11::str groups = interned("param_groups");
  pybind11::str state = interned("state");
  pybind11::str defaults = interned("defaults");
  pybind11::str profiled = interned("_zero_grad_profile_name");
  pybind11::str hooks_before = interned("_optimizer_step_pre_hooks");
  pybind11::str hooks_behind = interned("_optimizer_step_post_hooks");
  pybind11::str params = interned("params"); // of a group, as the next
  pybind11::str rate = interned("lr");
  pybind11::str differentiable = interned("differentiable");

  static pybind11::str interned(const char* name) {
    return pybind11::reinterpret_steal<pybind11::str>(PyUnicode_InternFromString(name));
  }
};

inline const Names& names() {
  static const auto* const made = new Names();
  return *made;
}

// What a dictionary has under a key: borrowed, null where there is nothing.
inline PyObject* item(PyObject* dict, const pybind11::str& key) {
  PyObject* found = PyDict_GetItemWithError(dict, key.ptr());
  if (!found && PyErr_Occurred()) {
    throw pybind11::error_already_set();
  }
  return found;
}

// The dictionary of an object's own attributes.
inline pybind11::object attributes_of(PyObject* object) {
  auto attributes = pybind11::reinterpret_steal<pybind11::object>(PyObject_GenericGetDict(object, nullptr));
  if (!attributes) {
    throw pybind11::error_already_set();
  }
  return attributes;
}

} // namespace gradc
