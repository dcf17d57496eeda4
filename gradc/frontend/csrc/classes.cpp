// SameClasses: one guard for all classes that a compiled function met: nothing that it read of them has changed.
//
// Python gives a class a new version tag when an attribute of it, or of a class that it inherits from, is set or deleted, and no
// two states of any classes share a tag. Where the tag is another one, Python code looks whether what was read is still there;
// if it is, the new tag is the known one. Classes are not kept alive: what is compiled hangs on their functions.
#include "csrc/builtin.h"
#include "csrc/class_versions.h"
#include "frontend/csrc/bind.h"

#include <memory>
#include <utility>
#include <vector>

namespace py = pybind11;

namespace gradc {
namespace {

// Of a class that is gone, nothing.
py::object referent(const py::weakref& reference) {
#if PY_VERSION_HEX >= 0x030D0000
  PyObject* found = nullptr;
  if (PyWeakref_GetRef(reference.ptr(), &found) < 0) {
    throw py::error_already_set();
  }
  return py::reinterpret_steal<py::object>(found);
#else
  PyObject* found = PyWeakref_GET_OBJECT(reference.ptr());
  return py::reinterpret_borrow<py::object>(found == Py_None ? nullptr : found);
#endif
}

struct KnownClass {
  py::weakref type;
  unsigned int version;
};

class SameClasses {
 public:
  explicit SameClasses(py::function look) : look_(std::move(look)) {}

  void add(const py::type& type) {
    known_.push_back({py::weakref(py::handle(type)), version_of(reinterpret_cast<PyTypeObject*>(type.ptr()))});
  }

  bool are_same(PyObject* /*unused*/) {
    for (auto& known : known_) {
      const py::object type = referent(known.type);
      if (type && !is_same(known, reinterpret_cast<PyTypeObject*>(type.ptr()))) {
        return false;
      }
    }
    return true;
  }

 private:
  bool is_same(KnownClass& known, PyTypeObject* type) {
    if (has_version(type, known.version)) {
      return true;
    }
    const auto version = version_of(type);
    if (!look_(py::handle(reinterpret_cast<PyObject*>(type))).cast<bool>()) {
      return false;
    }
    known.version = version;
    return true;
  }

  py::function look_;
  std::vector<KnownClass> known_;
};

} // namespace

void bind_class_guards(py::module_& module) {
  using Shared = std::shared_ptr<SameClasses>;
  py::class_<SameClasses, Shared>(module, "SameClasses", "A guard: whether the classes are what they were, asked with anything.")
      .def(py::init<py::function>(), "(a class that has changed -> whether what was read of it is the same)")
      .def("add", &SameClasses::add)
      .def_property_readonly("ask", [](Shared own) { return builtin_of<&SameClasses::are_same>(std::move(own), "gradc_are_same"); });
}

} // namespace gradc
