// QuickSteps: the step of an optimizer whose groups are all known, in one call without Python.
//
//     QuickSteps::step(optimizer) -> whether it is done; if not, nothing has happened
//
// An optimizer is learned when its step went the long way, through Python (native_step.py), and nothing about it was unusual. What
// that saw of its class holds as long as the class has the same version tag; what it saw of the optimizer itself is looked at anew.
// All groups are read and checked before the first is written. The GIL is held throughout.
#pragma once

#include "optim/csrc/group_step.h"

#include <pybind11/pybind11.h>

#include <memory>
#include <string>
#include <vector>

namespace gradc {

class __attribute__((visibility("hidden"))) QuickSteps { // as all that holds pybind11's
 public:
  // An optimizer with one of the attributes `that_decide` of its own is not served, nor is one with hooks: `hooks` are those of all
  // optimizers. `counters["optim"]["native steps"]` is added to. `asks_whether_captured`: nor is one while the accelerator
  // captures a graph, of which the step that is left out here tells.
  QuickSteps(
      std::vector<pybind11::str> that_decide, std::vector<pybind11::dict> hooks, pybind11::object counters, bool asks_whether_captured);

  // From now on `optimizer`, whose groups have these steps, in their order.
  void learn(const pybind11::object& optimizer, std::vector<std::shared_ptr<GroupStep>> groups);

  bool step(PyObject* optimizer);

 private:
  struct Known {
    pybind11::weakref optimizer;
    unsigned int version; // of its class
    std::vector<std::shared_ptr<GroupStep>> groups;
  };

  Known* find(PyObject* optimizer);
  bool is_as_usual(PyObject* attributes) const;
  void count(size_t number) const;

  std::vector<pybind11::str> that_decide_;
  std::vector<pybind11::dict> hooks_;
  pybind11::object counters_;
  bool asks_whether_captured_;
  std::vector<Known> known_;
};

} // namespace gradc
