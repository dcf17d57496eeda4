// The version tag of a dictionary: another one after each change, and no two states of any dictionaries share one.
#pragma once

#include <Python.h>

#include <cstdint>

namespace gradc {

// Python 3.12 has watchers instead, and no longer promises the tag: 0, which is never to be taken for the same state.
inline uint64_t version_of(PyObject* dict) {
#if PY_VERSION_HEX < 0x030C0000
  return reinterpret_cast<PyDictObject*>(dict)->ma_version_tag;
#else
  return 0;
#endif
}

} // namespace gradc
