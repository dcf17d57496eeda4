// SameObjects: one guard for what Dynamo met on its way through modules, dictionaries and parameters: all is as it was.
//
// Dynamo's guards walk that way at each call, from object to object, and look at each. This guard has them do so once, and keeps
// which objects were found where. After that it compares version tags of dictionaries, and of tensors what Dynamo compares.
// Whatever is not the same, Dynamo's own guards are asked again.
//
// The way is a list of steps, each behind the one that leads to it. What a call has found so far is alive: it was looked up in the
// frame's variables, or stands in a dictionary of one state. Only then is the next step taken from there. With the GIL held.
#include "csrc/builtin.h"
#include "csrc/dict_versions.h"
#include "csrc/sizes.h"
#include "frontend/csrc/bind.h"

#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/autograd/python_variable.h>

#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace py = pybind11;

namespace gradc {
namespace {

// How an object is found: the frame's variable, or from another object. The last three are in a dictionary, whose state tells
// that they are in place; the others are looked up at each call.
enum class By { local, global, attribute, closure, code, element, contents, dict, item, key_at, value_at };

// What is compared of an object besides its place.
enum class Watched { nothing, constant, type, sequence, dictionary, tensor };

const std::unordered_map<std::string, By> ways = {
    {"local", By::local},     {"global", By::global},     {"attribute", By::attribute}, {"closure", By::closure},
    {"code", By::code},       {"element", By::element},   {"contents", By::contents},   {"dict", By::dict},
    {"item", By::item},       {"key at", By::key_at},     {"value at", By::value_at}};
const std::unordered_map<std::string, Watched> watches = {
    {"nothing", Watched::nothing},   {"constant", Watched::constant},     {"type", Watched::type},
    {"sequence", Watched::sequence}, {"dictionary", Watched::dictionary}, {"tensor", Watched::tensor}};

struct ObjectStep {
  By by;
  size_t from; // the step that found where to look; of no meaning for variables
  py::object key;
  Watched watched;
  bool may_be_another; // of which the same is watched
};

// What is compared of a tensor: as torch::dynamo::TensorCheck does.
struct KnownTensor {
  c10::DispatchKeySet keys;
  caffe2::TypeMeta dtype;
  c10::DeviceIndex device = -1;
  bool requires_grad = false;
  c10::SmallVector<int64_t, 8> sizes, strides;

  static bool is_plain(const c10::TensorImpl& tensor) {
    return tensor.layout() == c10::kStrided && !tensor.has_symbolic_sizes_strides() && !tensor.is_python_dispatch() &&
        !tensor.key_set().has(c10::DispatchKey::NestedTensor);
  }
  explicit KnownTensor(const c10::TensorImpl& tensor)
      : keys(tensor.key_set()),
        dtype(tensor.dtype()),
        device(tensor.device().index()),
        requires_grad(tensor.requires_grad()),
        sizes(tensor.sizes().begin(), tensor.sizes().end()),
        strides(tensor.strides().begin(), tensor.strides().end()) {}

  bool is_like(const c10::TensorImpl& tensor) const {
    return tensor.key_set() == keys && tensor.dtype() == dtype && tensor.requires_grad() == requires_grad &&
        tensor.device().index() == device && are_equal(tensor.sizes(), sizes) && are_equal(tensor.strides(), strides);
  }
};

// What a step found: borrowed, and compared before it is looked at.
struct Seen {
  PyObject* object = nullptr;
  PyTypeObject* type = nullptr; // null where it does not count
  uint64_t state = 0; // of a dictionary its version, of a list or tuple its length
  int64_t tensor = -1;
};

// Borrowed; null where there is none.
PyObject* found_in(PyObject* dict, PyObject* key) {
  PyObject* found = PyDict_GetItemWithError(dict, key);
  if (!found && PyErr_Occurred()) {
    throw py::error_already_set();
  }
  return found;
}

// An object's own dictionary, which lives as long as the object has it; null where it has none.
PyObject* dict_of(PyObject* object) {
  PyObject* dict = PyObject_GenericGetDict(object, nullptr);
  if (!dict) {
    PyErr_Clear();
    return nullptr;
  }
  Py_DECREF(dict);
  return dict;
}

bool is_sequence(PyObject* object) {
  return PyTuple_CheckExact(object) || PyList_CheckExact(object);
}

PyObject* entry_at(PyObject* dict, Py_ssize_t place, bool is_key) {
  PyObject *key = nullptr, *value = nullptr;
  Py_ssize_t position = 0;
  for (Py_ssize_t i = 0; PyDict_Next(dict, &position, &key, &value); ++i) {
    if (i == place) {
      return is_key ? key : value;
    }
  }
  return nullptr;
}

class SameObjects {
 public:
  SameObjects(py::function look, py::dict globals) : look_(std::move(look)), globals_(std::move(globals)) {}

  // The number of the step. `from`: that of the one before it on the way; of no meaning for variables.
  size_t add(const std::string& by, size_t from, py::object key, const std::string& watched, bool may_be_another) {
    steps_.push_back({ways.at(by), from, std::move(key), watches.at(watched), may_be_another});
    return steps_.size() - 1;
  }

  bool are_same(PyObject* variables) {
    if (is_known_ && is_state_known() && are_as_seen(variables)) {
      ++num_hits_;
      return true;
    }
    num_misses_ += is_known_;
    forget();
    if (!look_(py::handle(variables)).cast<bool>()) {
      return false;
    }
    if (num_misses_ <= 32 + num_hits_ / 16) { // else they change all the time
      is_known_ = see(variables);
    }
    return true;
  }

  void forget() {
    is_known_ = false;
    seen_.clear();
    compared_.clear();
    tensors_.clear();
    constants_.clear();
  }

 private:
  // Dynamo compares a tensor's keys as a kernel would be chosen by them, here and now.
  bool is_state_known() const {
    const auto state = c10::impl::tls_local_dispatch_key_set();
    return state.included_ == included_ && state.excluded_ == excluded_;
  }

  // What is there now, of what is looked up at each call; borrowed, null where nothing is. `from` is alive.
  PyObject* look_up(const ObjectStep& step, PyObject* variables) const {
    PyObject* from = step.from < seen_.size() ? seen_[step.from].object : nullptr;
    switch (step.by) {
      case By::local:
        return found_in(variables, step.key.ptr());
      case By::global:
        return found_in(globals_.ptr(), step.key.ptr());
      case By::attribute:
        return PyModule_CheckExact(from) ? found_in(PyModule_GetDict(from), step.key.ptr()) : nullptr;
      case By::closure:
        return PyFunction_Check(from) ? PyFunction_GET_CLOSURE(from) : nullptr;
      case By::code:
        return PyFunction_Check(from) ? PyFunction_GET_CODE(from) : nullptr;
      case By::element: {
        const auto place = PyLong_AsSsize_t(step.key.ptr());
        return is_sequence(from) && place >= 0 && place < Py_SIZE(from) ? PySequence_Fast_GET_ITEM(from, place) : nullptr;
      }
      case By::contents:
        return PyCell_Check(from) ? PyCell_GET(from) : nullptr;
      case By::dict:
        return dict_of(from);
      case By::item:
        return PyDict_Check(from) ? found_in(from, step.key.ptr()) : nullptr;
      case By::key_at:
      case By::value_at:
        return PyDict_CheckExact(from) ? entry_at(from, PyLong_AsSsize_t(step.key.ptr()), step.by == By::key_at) : nullptr;
    }
    return nullptr;
  }

  bool are_as_seen(PyObject* variables) {
    for (const size_t number : compared_) {
      const ObjectStep& step = steps_[number];
      Seen& seen = seen_[number];
      if (step.by < By::item) {
        PyObject* found = look_up(step, variables);
        if (!found || (found != seen.object && !step.may_be_another)) {
          return false;
        }
        seen.object = found;
      }
      if ((seen.type && Py_TYPE(seen.object) != seen.type) || (seen.state && state_of(step, seen.object) != seen.state)) {
        return false;
      }
      if (seen.tensor >= 0 && !tensors_[seen.tensor].is_like(*THPVariable_Unpack(seen.object).unsafeGetTensorImpl())) {
        return false;
      }
    }
    return true;
  }

  static uint64_t state_of(const ObjectStep& step, PyObject* object) {
    return step.watched == Watched::sequence ? 1 + static_cast<uint64_t>(Py_SIZE(object)) : version_of(object);
  }

  // Follows the steps, and keeps what they find; false where something is of a kind that cannot be compared.
  bool see(PyObject* variables) {
    forget(); // another thread may have been here while the guards were asked
    const auto state = c10::impl::tls_local_dispatch_key_set();
    included_ = state.included_;
    excluded_ = state.excluded_;
    constexpr c10::DispatchKeySet pythons(
        {c10::DispatchKey::Python, c10::DispatchKey::PythonTLSSnapshot, c10::DispatchKey::PythonDispatcher});
    if (included_.has_any(pythons)) {
      return false;
    }
    seen_.reserve(steps_.size());
    for (const ObjectStep& step : steps_) {
      Seen seen;
      seen.object = look_up(step, variables);
      if (!seen.object || !watch(step, seen)) {
        return false;
      }
      if (step.by < By::item || seen.type) {
        compared_.push_back(seen_.size());
      }
      seen_.push_back(seen);
    }
    return true;
  }

  bool watch(const ObjectStep& step, Seen& seen) {
    switch (step.watched) {
      case Watched::nothing:
        return true;
      case Watched::constant: // or another one might come to have its place in memory
        constants_.push_back(py::reinterpret_borrow<py::object>(seen.object));
        return true;
      case Watched::type:
        seen.type = Py_TYPE(seen.object);
        return true;
      case Watched::sequence:
        seen.type = Py_TYPE(seen.object);
        seen.state = is_sequence(seen.object) ? state_of(step, seen.object) : 0;
        return seen.state != 0;
      case Watched::dictionary:
        seen.type = Py_TYPE(seen.object);
        seen.state = PyDict_Check(seen.object) ? state_of(step, seen.object) : 0;
        return seen.state != 0;
      case Watched::tensor:
        if (!THPVariable_Check(seen.object) || !KnownTensor::is_plain(*THPVariable_Unpack(seen.object).unsafeGetTensorImpl())) {
          return false;
        }
        seen.type = Py_TYPE(seen.object);
        seen.tensor = static_cast<int64_t>(tensors_.size());
        tensors_.emplace_back(*THPVariable_Unpack(seen.object).unsafeGetTensorImpl());
        return true;
    }
    return false;
  }

  py::function look_;
  py::dict globals_;
  std::vector<ObjectStep> steps_;
  bool is_known_ = false;
  c10::DispatchKeySet included_, excluded_;
  std::vector<Seen> seen_; // of each step
  std::vector<size_t> compared_; // the steps of which something is
  std::vector<KnownTensor> tensors_;
  std::vector<py::object> constants_;
  uint64_t num_hits_ = 0, num_misses_ = 0;
};

} // namespace

void bind_object_guards(py::module_& module) {
  using Shared = std::shared_ptr<SameObjects>;
  py::class_<SameObjects, Shared>(module, "SameObjects", "A guard: whether what it saw is as it was, asked with a frame's variables.")
      .def(py::init<py::function, py::dict>(), "(the guards that are asked otherwise, the globals)")
      .def("add", &SameObjects::add)
      .def("forget", &SameObjects::forget)
      .def_property_readonly("ask", [](Shared own) { return builtin_of<&SameObjects::are_same>(std::move(own), "gradc_are_same"); });
}

} // namespace gradc
