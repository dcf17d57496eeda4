#include "optim/csrc/quick_method.h"

#include "csrc/builtin.h"
#include "optim/csrc/names.h"

#include <memory>
#include <utility>

namespace py = pybind11;

namespace gradc {
namespace {

struct QuickMethod {
  py::str name;
  py::object function, otherwise;
  Quickly quickly;

  PyObject* call(PyObject* optimizer) const {
    if (is_called_on(optimizer) && quickly(optimizer)) {
      Py_RETURN_NONE;
    }
    return PyObject_CallOneArg(otherwise.ptr(), optimizer);
  }

 private:
  bool is_called_on(PyObject* optimizer) const {
    PyTypeObject* type = Py_TYPE(optimizer);
    return type->tp_getattro == PyObject_GenericGetAttr && _PyType_Lookup(type, name.ptr()) == function.ptr() &&
        !item(attributes_of(optimizer).ptr(), name);
  }
};

} // namespace

py::object quick_method(const std::string& name, py::object function, py::object otherwise, Quickly quickly) {
  const auto method = std::make_shared<QuickMethod>(
      QuickMethod{Names::interned(name.c_str()), std::move(function), std::move(otherwise), std::move(quickly)});
  return builtin_of<&QuickMethod::call>(method, "gradc_optimizer");
}

} // namespace gradc
