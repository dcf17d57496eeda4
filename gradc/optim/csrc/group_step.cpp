#include "optim/csrc/group_step.h"

#include "csrc/dict_versions.h"
#include "optim/csrc/names.h"

#include <torch/csrc/Dtype.h>
#include <torch/csrc/DynamicTypes.h>
#include <torch/csrc/autograd/python_variable.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <utility>

namespace py = pybind11;

namespace gradc {
namespace {

constexpr int most_readings = 3; // with other counts, and with a new dtype

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

void GroupStep::Members::clear() {
  rows.clear();
  counts_of_steps.clear();
  number_of_count.clear();
}

void GroupStep::Members::add(const Update::Row& row, const at::Tensor* count_of_steps) {
  rows.push_back(row);
  counts_of_steps.push_back(count_of_steps);
}

bool are_apart(std::vector<const void*> places) {
  std::sort(places.begin(), places.end());
  return std::adjacent_find(places.begin(), places.end()) == places.end();
}

bool is_leaf_of_torchs(PyObject* param) {
  return THPVariable_CheckExact(param) && THPVariable_Unpack(param).is_leaf();
}

GroupStep::GroupStep(
    const py::dict& group,
    std::shared_ptr<Update> update,
    const std::vector<std::string>& keys,
    py::function numbers,
    std::vector<NumberStep> arithmetic,
    py::function is_proven)
    : update_(std::move(update)),
      has_counts_(!keys.empty() && keys.back() == "step"),
      numbers_of_(std::move(numbers)),
      is_proven_(std::move(is_proven)),
      arithmetic_(std::move(arithmetic)) {
  TORCH_CHECK(2 + keys.size() - has_counts_ == update_->num_operands(), "gradc: a group's state does not fit its update");
  for (const auto& [key, value] : group) {
    const bool is_read_anew = key.equal(names().params) || key.equal(names().rate);
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
    const auto rate = py::reinterpret_borrow<py::object>(item(group, names().rate));
    if (!is_number(rate.ptr()) || !read_numbers(rate.ptr(), counts)) {
      return false;
    }
    Counts found; // from here on no Python runs
    if (item(group, names().rate) != rate.ptr() || !read_members(item(group, names().params), state, found) || !do_numbers_fit()) {
      return false;
    }
    const bool is_expected = found == counts;
    counts = std::move(found);
    if (!are_proven()) {
      continue;
    }
    if (is_expected) {
      expected_ = std::move(counts);
      finish();
      return true;
    }
  }
  return false;
}

bool GroupStep::prepare(PyObject* group, PyObject* state) {
  if (is_in_python_ || is_large_ || !PyDict_CheckExact(group) || !PyDict_Check(state) || !is_same(group)) {
    return false;
  }
  Counts found;
  return compute_numbers(item(group, names().rate), expected_) && read_members(item(group, names().params), state, found) &&
      do_numbers_fit() && found == expected_ && !is_large_ &&
      std::all_of(members_.rows.begin(), members_.rows.end(), [this](const auto& row) { return is_known(row[0]->scalar_type()); });
}

void GroupStep::finish() {
  Counts counts = std::exchange(expected_, {});
  run(counts);
  if (has_counts_) {
    std::for_each(counts.begin(), counts.end(), [](double& count) { count += 1; });
  }
  expected_ = std::move(counts);
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
  if (compute_numbers(rate, counts)) {
    return true;
  }
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

// False where that takes Python.
bool GroupStep::compute_numbers(PyObject* rate, const Counts& counts) {
  if (arithmetic_.empty() || !rate || !PyFloat_CheckExact(rate)) {
    return false;
  }
  numbers_.resize(counts.size());
  for (size_t i = 0; i < counts.size(); ++i) {
    if (!compute(arithmetic_, PyFloat_AS_DOUBLE(rate), counts[i], numbers_[i])) {
      return false;
    }
  }
  return true;
}

bool GroupStep::read_members(PyObject* params, PyObject* state, Counts& counts) {
  members_.clear();
  num_elements_ = 0;
  if (!params || !PyList_CheckExact(params)) {
    return false;
  }
  States states(state);
  known_.resize(PyList_GET_SIZE(params));
  for (Py_ssize_t number = 0; number < PyList_GET_SIZE(params); ++number) {
    PyObject* param = PyList_GET_ITEM(params, number);
    if (!is_leaf_of_torchs(param)) {
      return false;
    }
    Update::Row row{&THPVariable_Unpack(param)};
    row[1] = &row[0]->grad();
    if (!row[1]->defined()) {
      continue;
    }
    const at::Tensor* count_of_steps = nullptr;
    if (!keys_.empty() && !read_state(states.of(param), row, count_of_steps, known_[number])) {
      return false;
    }
    num_elements_ += row[0]->numel();
    members_.add(row, count_of_steps);
  }
  if (*update_->why_not(members_.rows) != '\0' || !add_counts(counts)) {
    return false;
  }
  is_large_ = update_->takes_long(num_elements_);
  std::vector<const void*> places;
  add_places_of_counts(places);
  return are_apart(std::move(places));
}

bool GroupStep::read_state(PyObject* own, Update::Row& row, const at::Tensor*& count_of_steps, KnownState& known) const {
  const uint64_t version = own && PyDict_CheckExact(own) ? version_of(own) : 0;
  const auto is_torchs = [](PyObject* value) { return THPVariable_CheckExact(value); }; // a class can be given to an object later
  if (version && version == known.version && std::all_of(known.values.begin(), known.values.end(), is_torchs)) {
    std::copy(known.row.begin() + 2, known.row.end(), row.begin() + 2);
    count_of_steps = known.count_of_steps;
    return true;
  }
  known.version = 0;
  known.values.clear();
  for (size_t i = 0; i < keys_.size(); ++i) {
    PyObject* value = own && PyDict_Check(own) ? item(own, keys_[i]) : nullptr;
    if (!value || !THPVariable_CheckExact(value)) {
      return false;
    }
    known.values.push_back(value);
    const at::Tensor& tensor = THPVariable_Unpack(value);
    (has_counts_ && i + 1 == keys_.size() ? count_of_steps : row[2 + i]) = &tensor;
  }
  known.version = version;
  known.row = row;
  known.count_of_steps = count_of_steps;
  return true;
}

bool GroupStep::add_counts(Counts& counts) {
  for (const at::Tensor* count_of_steps : members_.counts_of_steps) {
    if (has_counts_ && !is_scalar(*count_of_steps)) {
      return false;
    }
    const double count = has_counts_ ? next_count(*count_of_steps) : 0.0;
    const auto known = std::find(counts.begin(), counts.end(), count);
    members_.number_of_count.push_back(known - counts.begin());
    if (known == counts.end()) {
      counts.push_back(count);
    }
  }
  return true;
}

// False for a number that torch refuses to convert to float32. It computes so with bfloat16, too.
bool GroupStep::do_numbers_fit() const {
  constexpr double most = std::numeric_limits<float>::max();
  const auto is_float = [](const Update::Row& row) { return row[0]->scalar_type() != at::kDouble; };
  const auto is_beyond = [](double number) { return std::isfinite(number) && std::abs(number) > most; };
  const auto has_any_beyond = [&](const std::vector<double>& own) { return std::any_of(own.begin(), own.end(), is_beyond); };
  const auto& rows = members_.rows;
  return std::none_of(numbers_.begin(), numbers_.end(), has_any_beyond) || std::none_of(rows.begin(), rows.end(), is_float);
}

void GroupStep::add_places_of_counts(std::vector<const void*>& places) const {
  if (has_counts_) {
    std::transform(
        members_.counts_of_steps.begin(), members_.counts_of_steps.end(), std::back_inserter(places),
        [](const at::Tensor* count_of_steps) { return count_of_steps->const_data_ptr(); });
  }
}

bool GroupStep::is_known(at::ScalarType dtype) const {
  return std::find(proven_.begin(), proven_.end(), dtype) != proven_.end();
}

// False, and all has to be read again, where Python had to be asked. What is not proven fits no expectation.
bool GroupStep::are_proven() {
  for (const Update::Row& row : members_.rows) {
    if (const auto dtype = row[0]->scalar_type(); !is_known(dtype)) {
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
  if (!is_large_) {
    update(members, numbers, counts);
    members_ = std::move(members); // their memory, for the next time
    return;
  }
  std::vector<at::Tensor> held; // while Python runs, and may let them go
  held.reserve(members.rows.size() * (Update::most_values + 1));
  const auto hold = [&held](const at::Tensor*& tensor) {
    if (tensor) {
      held.push_back(*tensor);
      tensor = &held.back();
    }
  };
  for (Update::Row& row : members.rows) {
    std::for_each(row.begin(), row.end(), hold);
  }
  std::for_each(members.counts_of_steps.begin(), members.counts_of_steps.end(), hold);
  const py::gil_scoped_release no_gil;
  update(members, numbers, counts);
}

void GroupStep::update(const Members& members, const std::vector<std::vector<double>>& numbers, const Counts& counts) const {
  for (size_t i = 0; has_counts_ && i < members.rows.size(); ++i) {
    set_scalar(*members.counts_of_steps[i], counts[members.number_of_count[i]]);
  }
  update_->run(members.rows, numbers, members.number_of_count);
}

} // namespace gradc
