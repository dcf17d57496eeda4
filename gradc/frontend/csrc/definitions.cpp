// SameDefinitions: one guard for all classes and functions that a compiled function met: nothing that it read of them has changed.
//
// Python gives a class a new version tag when an attribute of it, or of a class that it inherits from, is set or deleted, and no
// two states of any classes share a tag. Where the tag is another one, Python code looks whether what was read is still there;
// if it is, the new tag is the known one. A function's code and defaults may be set in place, which no class notices: they are
// compared at each call, those of functions that came to another's place since, too. Neither classes nor functions are kept
// alive: what is compiled hangs on them.
#include "csrc/builtin.h"
#include "csrc/class_versions.h"
#include "frontend/csrc/bind.h"

#include <memory>
#include <optional>
#include <utility>
#include <vector>

namespace py = pybind11;

namespace gradc {
namespace {

// Of a class or function that is gone, nothing.
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

// Objects by identity. Constants are kept alive, so that no other comes to their place; what else may lead to the function is not.
class KnownObjects {
 public:
  explicit KnownObjects(const std::vector<PyObject*>& objects) : objects_(objects) {
    for (PyObject* object : objects) {
      if (!PyObject_IS_GC(object)) {
        kept_.push_back(py::reinterpret_borrow<py::object>(object));
      }
    }
  }
  bool are(const std::vector<PyObject*>& others) const {
    return others == objects_;
  }

 private:
  std::vector<PyObject*> objects_;
  std::vector<py::object> kept_;
};

// A function's defaults: those by place; then the names and values of those by keyword.
std::vector<PyObject*> defaults_of(PyObject* function) {
  std::vector<PyObject*> found;
  if (PyObject* by_place = PyFunction_GET_DEFAULTS(function)) {
    PyObject** items = PySequence_Fast_ITEMS(by_place);
    found.assign(items, items + PyTuple_GET_SIZE(by_place));
  }
  PyObject *by_keyword = PyFunction_GET_KW_DEFAULTS(function), *key = nullptr, *value = nullptr;
  for (Py_ssize_t place = 0; by_keyword && PyDict_Next(by_keyword, &place, &key, &value);) {
    found.insert(found.end(), {key, value});
  }
  return found;
}

struct KnownFunction {
  py::weakref function;
  py::object code;
  std::optional<KnownObjects> defaults; // where they count

  bool is_same() const {
    const py::object current = referent(function);
    return !current || (PyFunction_GET_CODE(current.ptr()) == code.ptr() && (!defaults || defaults->are(defaults_of(current.ptr()))));
  }
};

class SameDefinitions {
 public:
  explicit SameDefinitions(py::function look) : look_(std::move(look)) {}

  void add(const py::type& type) {
    known_.push_back({py::weakref(py::handle(type)), version_of(reinterpret_cast<PyTypeObject*>(type.ptr()))});
  }

  // `are_defaults_read`: whether they count, besides the code.
  void add_function(const py::function& function, bool are_defaults_read) {
    PyObject* own = function.ptr();
    if (!PyFunction_Check(own)) {
      throw py::type_error("not a function of Python's");
    }
    auto code = py::reinterpret_borrow<py::object>(PyFunction_GET_CODE(own));
    auto defaults = are_defaults_read ? std::optional<KnownObjects>(defaults_of(own)) : std::nullopt;
    functions_.push_back({py::weakref(py::handle(function)), std::move(code), std::move(defaults)});
  }

  bool are_same(PyObject* /*unused*/) {
    for (const auto& known : functions_) {
      if (!known.is_same()) {
        return false;
      }
    }
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
    const py::object functions = look_(py::handle(reinterpret_cast<PyObject*>(type)));
    if (functions.is_none()) {
      return false;
    }
    for (const auto& function : functions) {
      add_function(function.cast<py::function>(), false);
    }
    known.version = version;
    return true;
  }

  py::function look_;
  std::vector<KnownClass> known_;
  std::vector<KnownFunction> functions_;
};

} // namespace

void bind_definition_guards(py::module_& module) {
  using Shared = std::shared_ptr<SameDefinitions>;
  py::class_<SameDefinitions, Shared>(module, "SameDefinitions", "A guard: whether classes and functions are what they were.")
      .def(py::init<py::function>(), "(a class that has changed -> None, or if it holds what was read, functions that are new there)")
      .def("add", &SameDefinitions::add)
      .def("add_function", &SameDefinitions::add_function)
      .def_property_readonly("ask", [](Shared own) { return builtin_of<&SameDefinitions::are_same>(std::move(own), "gradc_are_same"); });
}

} // namespace gradc
