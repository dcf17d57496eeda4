// The version tag of a class: another one once an attribute of it, or of a class that it inherits from, is set or deleted.
#pragma once

#include <Python.h>

namespace gradc {

// 0, the tag of no class, where Python gives out no more.
inline unsigned int version_of(PyTypeObject* type) {
#if PY_VERSION_HEX >= 0x030C0000
  return PyUnstable_Type_AssignVersionTag(type) ? type->tp_version_tag : 0;
#else
  static PyObject* const any_name = PyUnicode_InternFromString("__class__");
  _PyType_Lookup(type, any_name); // which gives it a tag
  return type->tp_version_tag;
#endif
}

inline bool has_version(const PyTypeObject* type, unsigned int version) {
  return version != 0 && type->tp_version_tag == version;
}

} // namespace gradc
