#include "optim/csrc/group_step.h"

#include <torch/csrc/Dtype.h>
#include <torch/csrc/DynamicTypes.h>
#include <torch/csrc/autograd/python_variable.h>

#include <algorithm>
#include <utility>

namespace py = pybind11;

namespace gradc {
namespace {

constexpr int64_t most_elements = 1 << 18; // of a group whose update keeps other threads of Python waiting
constexpr int most_readings = 3; // with other counts, and with a new dtype

// Borrowed; null where there is none.
PyObject* found_in(PyObject* dict, const py::str& key) {
  PyObject* found = PyDict_GetItemWithError(dict, key.ptr());
  if (!found && PyErr_Occurred()) {
    throw py::error_already_set();
  }
  return found;
}

const py::str& params_key() {
  static const auto* const key = new py::str("params");
  return *key;
}

const py::str& rate_key() {
  static const auto* const key = new py::str("lr");
  return *key;
}

bool is_number(PyObject* value) {
  return value && (PyFloat_CheckExact(value) || PyLong_CheckExact(value));
}

// The state of parameters that come one after the other. It is found by going through all that there is, from the last one found on:
// mostly it lies in the order of the parameters, and a tensor's hash is computed in Python.
class States {
 public:
  explicit States(PyObject* state) : state_(state), steps_left_(8 * PyDict_GET_SIZE(state) + 64) {}

  // Borrowed; null where there is none, or where that takes long to find out.
  PyObject* of(PyObject* param) {
    PyObject *key = nullptr, *own = nullptr;
    for (bool is_anew = place_ == 0; steps_left_-- > 0;) {
      if (PyDict_Next(state_, &place_, &key, &own)) {
        if (key == param) {
          return own;
        }
      } else if (std::exchange(is_anew, true)) {
        return nullptr;
      } else {
        place_ = 0;
      }
    }
    return nullptr;
  }

 private:
  PyObject* state_;
  Py_ssize_t steps_left_;
  Py_ssize_t place_ = 0;
};

// While it is true, a step inside of a step is torch's.
class Flag {
 public:
  explicit Flag(bool& flag) : flag_(flag) {
    flag_ = true;
  }
  ~Flag() {
    flag_ = false;
  }
  Flag(const Flag&) = delete;
  Flag& operator=(const Flag&) = delete;
  Flag(Flag&&) = delete;
  Flag& operator=(Flag&&) = delete;

 private:
  bool& flag_;
};

} // namespace

bool is_leaf_of_torchs(PyObject* param) {
  return THPVariable_CheckExact(param) && THPVariable_Unpack(param).is_leaf();
}

GroupStep::GroupStep(
    const py::dict& group,
    std::shared_ptr<Update> update,
    const std::vector<std::string>& keys,
    py::function numbers,
    py::function is_proven)
    : update_(std::move(update)),
      has_counts_(!keys.empty() && keys.back() == "step"),
      numbers_of_(std::move(numbers)),
      is_proven_(std::move(is_proven)) {
  TORCH_CHECK(2 + keys.size() - has_counts_ == update_->num_operands(), "gradc: a group's state does not fit its update");
  for (const auto& [key, value] : group) {
    const bool is_read_anew = key.equal(params_key()) || key.equal(rate_key());
    settings_.push_back({py::reinterpret_borrow<py::object>(key), py::reinterpret_borrow<py::object>(is_read_anew ? nullptr : value)});
  }
  for (const auto& key : keys) {
    keys_.push_back(py::reinterpret_steal<py::str>(PyUnicode_InternFromString(key.c_str())));
  }
}

bool GroupStep::step(PyObject* group, PyObject* state) {
  if (is_in_python_ || !PyDict_CheckExact(group) || !PyDict_Check(state) || !is_same(group)) {
    return false;
  }
  Counts counts = std::exchange(expected_, {});
  for (int reading = 0; reading < most_readings; ++reading) {
    const auto rate = py::reinterpret_borrow<py::object>(found_in(group, rate_key()));
    if (!is_number(rate.ptr()) || !read_numbers(rate.ptr(), counts)) {
      return false;
    }
    Counts found; // from here on no Python runs
    if (found_in(group, rate_key()) != rate.ptr() || !read_members(found_in(group, params_key()), state, found)) {
      return false;
    }
    const bool is_expected = found == counts;
    counts = std::move(found);
    if (!are_proven()) {
      continue;
    }
    if (is_expected) {
      run(counts);
      std::for_each(counts.begin(), counts.end(), [](double& count) { count += 1; });
      expected_ = std::move(counts);
      return true;
    }
  }
  return false;
}

bool GroupStep::is_same(PyObject* group) const {
  Py_ssize_t place = 0;
  PyObject *key = nullptr, *value = nullptr;
  auto known = settings_.begin();
  for (; PyDict_Next(group, &place, &key, &value); ++known) {
    if (known == settings_.end() || key != known->key.ptr() || (known->value && value != known->value.ptr())) {
      return false;
    }
  }
  return known == settings_.end();
}

// False where the settings give no numbers, which torch tells of.
bool GroupStep::read_numbers(PyObject* rate, const Counts& counts) {
  const Flag flag(is_in_python_);
  std::vector<std::vector<double>> numbers;
  for (const double count : counts) {
    const py::object own = numbers_of_(py::handle(rate), count);
    if (own.is_none()) {
      return false;
    }
    numbers.push_back(own.cast<std::vector<double>>());
  }
  numbers_ = std::move(numbers);
  return true;
}

bool GroupStep::read_members(PyObject* params, PyObject* state, Counts& counts) {
  members_.clear();
  num_elements_ = 0;
  if (!params || !PyList_CheckExact(params)) {
    return false;
  }
  States states(state);
  for (Py_ssize_t number = 0; number < PyList_GET_SIZE(params); ++number) {
    PyObject* param = PyList_GET_ITEM(params, number);
    if (!is_leaf_of_torchs(param)) {
      return false;
    }
    Member member;
    member.row[0] = &THPVariable_Unpack(param);
    member.row[1] = &member.row[0]->grad();
    if (!member.row[1]->defined()) {
      continue;
    }
    if ((!keys_.empty() && !read_state(states.of(param), member)) || *update_->why_not(member.row) != '\0' || !add_count(member, counts)) {
      return false;
    }
    num_elements_ += member.row[0]->numel();
    members_.push_back(member);
  }
  return are_counts_apart();
}

bool GroupStep::read_state(PyObject* own, Member& member) const {
  for (size_t i = 0; i < keys_.size(); ++i) {
    PyObject* value = own && PyDict_Check(own) ? found_in(own, keys_[i]) : nullptr;
    if (!value || !THPVariable_CheckExact(value)) {
      return false;
    }
    const at::Tensor& tensor = THPVariable_Unpack(value);
    (has_counts_ && i + 1 == keys_.size() ? member.count_of_steps : member.row[2 + i]) = &tensor;
  }
  return true;
}

bool GroupStep::add_count(Member& member, Counts& counts) const {
  if (has_counts_ && !is_scalar(*member.count_of_steps)) {
    return false;
  }
  const double count = has_counts_ ? next_count(*member.count_of_steps) : 0.0;
  const auto known = std::find(counts.begin(), counts.end(), count);
  member.number_of_count = known - counts.begin();
  if (known == counts.end()) {
    counts.push_back(count);
  }
  return true;
}

// Shared by two parameters, it would be counted twice.
bool GroupStep::are_counts_apart() const {
  std::vector<const void*> places;
  places.reserve(members_.size());
  for (size_t i = 0; has_counts_ && i < members_.size(); ++i) {
    places.push_back(members_[i].count_of_steps->const_data_ptr());
  }
  std::sort(places.begin(), places.end());
  return std::adjacent_find(places.begin(), places.end()) == places.end();
}

// False, and all has to be read again, where Python had to be asked. What is not proven fits no expectation.
bool GroupStep::are_proven() {
  const auto is_known = [this](at::ScalarType dtype) { return std::find(proven_.begin(), proven_.end(), dtype) != proven_.end(); };
  for (const Member& member : members_) {
    const auto dtype = member.row[0]->scalar_type();
    if (!is_known(dtype)) {
      const Flag flag(is_in_python_);
      if (py::cast<bool>(is_proven_(py::reinterpret_borrow<py::object>(reinterpret_cast<PyObject*>(torch::getTHPDtype(dtype)))))) {
        proven_.push_back(dtype);
      }
      return false;
    }
  }
  return true;
}

void GroupStep::run(const Counts& counts) {
  auto members = std::exchange(members_, {});
  const auto numbers = std::exchange(numbers_, {});
  if (num_elements_ <= most_elements) {
    update(members, numbers, counts);
    members_ = std::move(members); // their memory, for the next time
    return;
  }
  std::vector<at::Tensor> held; // while Python runs, and may let them go
  held.reserve(members.size() * (Update::most_values + 1));
  const auto hold = [&held](const at::Tensor*& tensor) {
    if (tensor) {
      held.push_back(*tensor);
      tensor = &held.back();
    }
  };
  for (Member& member : members) {
    std::for_each(member.row.begin(), member.row.end(), hold);
    hold(member.count_of_steps);
  }
  const py::gil_scoped_release no_gil;
  update(members, numbers, counts);
}

void GroupStep::update(
    const std::vector<Member>& members, const std::vector<std::vector<double>>& numbers, const Counts& counts) const {
  for (const Member& member : members) {
    if (has_counts_) {
      set_scalar(*member.count_of_steps, counts[member.number_of_count]);
    }
  }
  for (const Member& member : members) {
    update_->run(member.row, numbers[member.number_of_count]);
  }
}

} // namespace gradc
