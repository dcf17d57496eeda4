#include "optim/csrc/quick_step.h"

#include "csrc/class_versions.h"
#include "csrc/listening.h"
#include "csrc/streams.h"
#include "optim/csrc/device_kernel.h"
#include "optim/csrc/names.h"

#include <algorithm>
#include <utility>

namespace py = pybind11;

namespace gradc {
namespace {

constexpr size_t most_known = 64; // optimizers at once; then the first is forgotten, and learned again at its next step

bool is_empty(PyObject* dict) {
  return dict && PyDict_Check(dict) && PyDict_GET_SIZE(dict) == 0;
}

} // namespace

QuickSteps::QuickSteps(
    std::vector<py::str> that_decide, std::vector<py::dict> hooks, py::object counters, bool asks_whether_captured)
    : that_decide_(std::move(that_decide)),
      hooks_(std::move(hooks)),
      counters_(std::move(counters)),
      asks_whether_captured_(asks_whether_captured) {}

void QuickSteps::learn(const py::object& optimizer, std::vector<std::shared_ptr<GroupStep>> groups) {
  const auto is_obsolete = [&](const Known& known) {
    const py::object of = known.optimizer();
    return of.is_none() || of.is(optimizer);
  };
  known_.erase(std::remove_if(known_.begin(), known_.end(), is_obsolete), known_.end());
  if (known_.size() == most_known) {
    known_.erase(known_.begin());
  }
  known_.push_back({py::weakref(optimizer), version_of(Py_TYPE(optimizer.ptr())), std::move(groups)});
}

bool QuickSteps::step(PyObject* optimizer) {
  const Known* own = find(optimizer);
  if (!own || !has_version(Py_TYPE(optimizer), own->version) || is_anybody_listening()) {
    return false;
  }
  if (asks_whether_captured_ && is_current_stream_captured()) {
    return false;
  }
  const py::object attributes = attributes_of(optimizer);
  if (!is_as_usual(attributes.ptr())) {
    return false;
  }
  PyObject* groups = item(attributes.ptr(), names().groups);
  PyObject* state = item(attributes.ptr(), names().state);
  if (!groups || !state || !PyList_CheckExact(groups) || static_cast<size_t>(PyList_GET_SIZE(groups)) != own->groups.size()) {
    return false;
  }
  std::vector<const void*> places;
  for (size_t i = 0; i < own->groups.size(); ++i) {
    if (!own->groups[i]->prepare(PyList_GET_ITEM(groups, i), state)) {
      return false;
    }
    own->groups[i]->add_places_of_counts(places);
  }
  if (own->groups.size() > 1 && !are_apart(std::move(places))) {
    return false;
  }
  for (const auto& group : own->groups) {
    group->finish();
  }
  count(own->groups.size());
  return true;
}

QuickSteps::Known* QuickSteps::find(PyObject* optimizer) {
  const auto found =
      std::find_if(known_.begin(), known_.end(), [&](const Known& known) { return known.optimizer().ptr() == optimizer; });
  return found == known_.end() ? nullptr : &*found;
}

bool QuickSteps::is_as_usual(PyObject* attributes) const {
  const bool has_any = std::any_of(that_decide_.begin(), that_decide_.end(), [&](const py::str& name) { return item(attributes, name); });
  const bool has_hooks = std::any_of(hooks_.begin(), hooks_.end(), [](const py::dict& hooks) { return !hooks.empty(); });
  PyObject* defaults = item(attributes, names().defaults);
  return !has_any && !has_hooks && is_empty(item(attributes, names().hooks_before)) && is_empty(item(attributes, names().hooks_behind)) &&
      defaults && PyDict_CheckExact(defaults) && item(defaults, names().differentiable) == Py_False;
}

void QuickSteps::count(size_t number) const {
  static const auto* const optim = new py::str("optim");
  static const auto* const native_steps = new py::str("native steps");
  const py::object counts = counters_[*optim];
  PyObject* before = item(counts.ptr(), *native_steps);
  const py::int_ now((before ? PyLong_AsSize_t(before) : 0) + number);
  if (PyDict_SetItem(counts.ptr(), native_steps->ptr(), now.ptr()) < 0) {
    throw py::error_already_set();
  }
}

} // namespace gradc
