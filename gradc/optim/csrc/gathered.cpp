#include "optim/csrc/gathered.h"

#include <torch/csrc/autograd/python_variable.h>

#include <algorithm>

namespace gradc {
namespace {

struct Decref {
  void operator()(PyObject* object) const { Py_DECREF(object); }
};
using Name = std::unique_ptr<PyObject, Decref>;

std::vector<Name> interned(const std::vector<std::string>& keys) {
  std::vector<Name> names;
  for (const auto& key : keys) {
    names.emplace_back(PyUnicode_InternFromString(key.c_str()));
  }
  return names;
}

// Borrowed; null where there is none.
PyObject* item(PyObject* dict, PyObject* key) {
  if (!dict || !PyDict_Check(dict)) {
    return nullptr;
  }
  PyObject* found = PyDict_GetItemWithError(dict, key);
  if (!found && PyErr_Occurred()) {
    throw python_error();
  }
  return found;
}

// The state of parameters that come one after the other. It mostly lies in their order, and is found without the hash of a tensor,
// which Python computes.
class States {
 public:
  explicit States(PyObject* state) : state_(state), is_in_order_(state && PyDict_Check(state)) {}

  // Borrowed; null where there is none.
  PyObject* of(PyObject* param) {
    PyObject* key = nullptr;
    PyObject* value = nullptr;
    while (is_in_order_ && PyDict_Next(state_, &place_, &key, &value)) {
      if (key == param) {
        return value;
      }
    }
    is_in_order_ = false;
    return item(state_, param);
  }

 private:
  PyObject* state_;
  Py_ssize_t place_ = 0;
  bool is_in_order_;
};

} // namespace

bool is_leaf_of_torchs(PyObject* param) {
  return THPVariable_CheckExact(param) && THPVariable_Unpack(param).is_leaf();
}

std::unique_ptr<Gathered> Gathered::make(PyObject* params, PyObject* state, const std::vector<std::string>& keys) {
  if (!PyList_Check(params)) {
    return nullptr;
  }
  const auto names = interned(keys);
  auto made = std::make_unique<Gathered>();
  const bool has_steps = !keys.empty() && keys.back() == "step";
  States states(state);
  made->operands_.resize(2 + keys.size() - has_steps);
  for (Py_ssize_t place = 0; place < PyList_GET_SIZE(params); ++place) {
    PyObject* param = PyList_GET_ITEM(params, place);
    if (!is_leaf_of_torchs(param)) {
      return nullptr;
    }
    const auto& grad = THPVariable_Unpack(param).grad();
    if (!grad.defined()) {
      continue;
    }
    made->operands_[0].push_back(THPVariable_Unpack(param));
    made->operands_[1].push_back(grad);
    PyObject* own = names.empty() ? nullptr : states.of(param);
    for (size_t i = 0; i < names.size(); ++i) {
      PyObject* value = item(own, names[i].get());
      if (!value || !THPVariable_CheckExact(value)) {
        return nullptr;
      }
      auto& column = has_steps && i + 1 == names.size() ? made->steps_ : made->operands_[2 + i];
      column.push_back(THPVariable_Unpack(value));
    }
  }
  return made;
}

std::string Gathered::why_not(const Update& update) const {
  const auto reason = update.why_not(operands_);
  return reason.empty() ? why_not_scalars(steps_) : reason;
}

std::vector<double> Gathered::next_counts() {
  number_of_.assign(operands_[0].size(), 0);
  if (steps_.empty()) {
    return {0.0};
  }
  counts_ = gradc::next_counts(steps_);
  std::vector<double> distinct;
  for (size_t i = 0; i < counts_.size(); ++i) {
    const auto found = std::find(distinct.begin(), distinct.end(), counts_[i]);
    number_of_[i] = found - distinct.begin();
    if (found == distinct.end()) {
      distinct.push_back(counts_[i]);
    }
  }
  return distinct;
}

void Gathered::run(const Update& update, const std::vector<std::vector<double>>& numbers) const {
  update.run(operands_, numbers, number_of_, steps_, counts_);
}

std::vector<at::ScalarType> Gathered::dtypes() const {
  std::vector<at::ScalarType> distinct;
  for (const auto& param : operands_[0]) {
    if (std::find(distinct.begin(), distinct.end(), param.scalar_type()) == distinct.end()) {
      distinct.push_back(param.scalar_type());
    }
  }
  return distinct;
}

} // namespace gradc
