// NoHooks: one guard for all hooks of a module and of the modules below it.
//
// Dynamo's own guards look each hook dictionary up by its path, which costs more than the rest of a small call. This one keeps
// where the dictionaries were, and looks them up again where that may have changed. A pointer kept from a dictionary is used
// only after that dictionary's version tag was seen to be the same: no two states of any dictionaries share a tag, so what the
// dictionary holds is alive and in place. From the root down, with the GIL held.
#include "csrc/builtin.h"
#include "csrc/dict_versions.h"
#include "frontend/csrc/bind.h"

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace py = pybind11;

namespace gradc {
namespace {

// What was looked up in one dictionary.
class Known {
 public:
  bool is_of(PyObject* dict) const {
    return dict == dict_ && version_ != 0 && version_of(dict) == version_;
  }
  void set(PyObject* dict) {
    dict_ = dict;
    version_ = version_of(dict);
  }

 private:
  PyObject* dict_ = nullptr;
  uint64_t version_ = 0;
};

PyObject* find(PyObject* dict, const py::str& key) {
  PyObject* found = PyDict_GetItemWithError(dict, key.ptr()); // borrowed
  if (!found && PyErr_Occurred()) {
    throw py::error_already_set();
  }
  return found;
}

// A module in the tree: which of its hook dictionaries must be empty, and which of its children count.
class Module {
 public:
  explicit Module(py::str name) : name_(std::move(name)) {}

  Module& child(const py::str& name) {
    for (auto& child : children_) {
      if (child->name_.equal(name)) {
        return *child;
      }
    }
    children_.push_back(std::make_unique<Module>(name));
    return *children_.back();
  }

  void add_hooks(py::str attribute) {
    attributes_.push_back(std::move(attribute));
  }

  bool has_none(PyObject* module) {
    const auto dict = py::reinterpret_steal<py::object>(PyObject_GenericGetDict(module, nullptr));
    if (!dict) {
      throw py::error_already_set();
    }
    if (!own_.is_of(dict.ptr()) && !look_up(dict.ptr())) {
      return false;
    }
    for (PyObject* hooks : hooks_) {
      if (PyDict_GET_SIZE(hooks) != 0) {
        return false;
      }
    }
    if (children_.empty()) {
      return true;
    }
    if (!below_.is_of(modules_) && !look_up_children()) {
      return false;
    }
    for (size_t i = 0; i < children_.size(); ++i) {
      if (!children_[i]->has_none(modules_below_[i])) {
        return false;
      }
    }
    return true;
  }

 private:
  bool look_up(PyObject* dict) {
    own_ = {};
    below_ = {};
    hooks_.clear();
    for (const auto& attribute : attributes_) {
      PyObject* hooks = find(dict, attribute);
      if (!hooks || !PyDict_Check(hooks)) {
        return false;
      }
      hooks_.push_back(hooks);
    }
    if (!children_.empty()) {
      static const py::str* const modules = new py::str("_modules");
      modules_ = find(dict, *modules);
      if (!modules_ || !PyDict_Check(modules_)) {
        return false;
      }
    }
    own_.set(dict);
    return true;
  }

  bool look_up_children() {
    below_ = {};
    modules_below_.clear();
    for (const auto& child : children_) {
      PyObject* module = find(modules_, child->name_);
      if (!module) {
        return false;
      }
      modules_below_.push_back(module);
    }
    below_.set(modules_);
    return true;
  }

  py::str name_;
  std::vector<py::str> attributes_;
  std::vector<std::unique_ptr<Module>> children_;
  Known own_, below_;
  std::vector<PyObject*> hooks_, modules_below_; // borrowed from the dictionaries that own_ and below_ know
  PyObject* modules_ = nullptr;
};

class NoHooks {
 public:
  void add(const std::vector<py::str>& path, const py::str& attribute) {
    Module* module = &root_;
    for (const auto& name : path) {
      module = &module->child(name);
    }
    module->add_hooks(attribute);
  }
  bool are_none(PyObject* module) {
    return root_.has_none(module);
  }

 private:
  Module root_{py::str("")};
};

// Dictionaries of hooks for all modules, and whether there were any.
class GlobalHooks {
 public:
  explicit GlobalHooks(std::vector<py::dict> dictionaries) : dictionaries_(std::move(dictionaries)), had_any_(have_any()) {}

  bool are_as_before(PyObject* /*unused*/) {
    return have_any() == had_any_;
  }

 private:
  bool have_any() const {
    return std::any_of(dictionaries_.begin(), dictionaries_.end(), [](const py::dict& hooks) { return !hooks.empty(); });
  }

  std::vector<py::dict> dictionaries_;
  bool had_any_;
};

} // namespace

void bind_guards(py::module_& module) {
  using Shared = std::shared_ptr<NoHooks>;
  py::class_<NoHooks, Shared>(module, "NoHooks", "A guard: whether no hooks are registered where it looks, asked with a module.")
      .def(py::init())
      .def("add", &NoHooks::add, "(names of modules from the root down, name of the dictionary of hooks)")
      .def_property_readonly("ask", [](Shared own) { return builtin_of<&NoHooks::are_none>(std::move(own), "gradc_are_none"); });
  module.def(
      "ask_for_hooks",
      [](std::vector<py::dict> dictionaries) {
        return builtin_of<&GlobalHooks::are_as_before>(std::make_shared<GlobalHooks>(std::move(dictionaries)), "gradc_are_as_before");
      },
      py::arg("dictionaries"), "What tells, called with anything, whether some of them hold hooks just if some do now.");
}

} // namespace gradc
