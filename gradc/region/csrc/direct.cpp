#include "region/csrc/direct.h"

#include "csrc/convert.h"
#include "csrc/keep.h"
#include "csrc/listening.h"
#include "csrc/spec.h"
#include "nodes/csrc/autocast_cache.h"
#include "nodes/csrc/call_region.h"
#include "nodes/csrc/hooks.h"
#include "nodes/csrc/joint_call.h"
#include "nodes/csrc/thread_counts.h"

#include <ATen/Context.h>
#include <ATen/SequenceNumber.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/alias.h>
#include <c10/core/InferenceMode.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/csrc/utils/object_ptr.h>

#include <algorithm>
#include <mutex>

namespace py = pybind11;

namespace gradc {
namespace {

struct DirectOutput {
  enum class Kind { plain, argument, value, again, view, size };

  Kind kind = Kind::value;
  size_t position = 0; // of the argument, the value, the output that is shown again, or the size
  bool is_of_argument = false; // of a view: what `position` counts
  py::object object; // the plain value, or what makes the view
};

struct DirectCall {
  std::shared_ptr<RegionLayout> region;
  std::vector<DirectOutput> outputs;
  py::object slow, raised;
  bool draws = false;
  bool may_be_dropped = false;
  std::vector<size_t> leaves;
  std::vector<size_t> unheard;
  std::shared_ptr<const StraightLoss> joint; // null where no output goes straight to backward
  size_t loss = 0; // of the values
  std::unique_ptr<Bindings> numbers; // null where the region has no symbols; those of nodes, and those that are returned
  size_t num_shapes = 0; // of nodes
  py::object sizes; // what views are made with
};

// What a call depends on symbols for.
struct CallNumbers {
  CallNumbers(const DirectCall& direct, const std::vector<c10::IValue>& inputs) : direct(direct) {
    if (direct.numbers) {
      symbols = read_symbols(direct.region->symbols, inputs);
      bound = direct.numbers->find_or_compute(symbols);
    }
  }

  int64_t operator[](size_t position) const {
    return (*bound)[position].boxed.toInt();
  }

  std::vector<int64_t> shapes() const {
    std::vector<int64_t> numbers;
    for (size_t position = 0; position < direct.num_shapes; ++position) {
      numbers.push_back((*this)[position]);
    }
    return numbers;
  }

  const DirectCall& direct;
  Symbols symbols;
  Binding bound;
};

DirectOutput read_output(const py::handle& specification) {
  using Kind = DirectOutput::Kind;
  static const Words<Kind> kinds = {
      {"plain", Kind::plain}, {"argument", Kind::argument}, {"value", Kind::value},
      {"again", Kind::again}, {"view", Kind::view},         {"size", Kind::size}};
  const auto [kind, position, is_of_argument, object] =
      as<std::tuple<std::string, size_t, bool, py::object>>(specification, "DirectOutput");
  return {word(kind, kinds, "DirectOutput.kind"), position, is_of_argument, object};
}

PyObject* make_view(const DirectOutput& output, const at::Tensor& base, const CallNumbers& numbers) {
  THPObjectPtr argument(THPVariable_Wrap(base));
  if (!numbers.direct.numbers) {
    return PyObject_CallOneArg(output.object.ptr(), argument.get());
  }
  const py::object sizes = numbers.direct.sizes(*py::cast(numbers.symbols));
  return PyObject_CallFunctionObjArgs(output.object.ptr(), argument.get(), sizes.ptr(), nullptr);
}

// Whether calls may be joint, whose output with that number goes straight to backward. A view's history would be looked at.
bool may_be_joint(const RegionLayout& region, const std::vector<DirectOutput>& outputs, size_t loss) {
  using Kind = DirectOutput::Kind;
  const auto is_view = [](const DirectOutput& output) { return output.kind == Kind::view; };
  return loss < outputs.size() && outputs[loss].kind == Kind::value && std::none_of(outputs.begin(), outputs.end(), is_view) &&
      ForwardBackwardCall::may_be(region, outputs[loss].position);
}

// A new reference; null with a Python error set.
PyObject* make_output(
    const DirectOutput& output,
    const std::vector<c10::IValue>& arguments,
    const std::vector<c10::IValue>& values,
    const CallNumbers& numbers,
    PyObject* results) {
  switch (output.kind) {
    case DirectOutput::Kind::plain:
      return Py_NewRef(output.object.ptr());
    case DirectOutput::Kind::argument:
      return THPVariable_Wrap(arguments[output.position].toTensor());
    case DirectOutput::Kind::again:
      return Py_NewRef(PyTuple_GET_ITEM(results, static_cast<Py_ssize_t>(output.position)));
    case DirectOutput::Kind::view:
      return make_view(output, (output.is_of_argument ? arguments : values)[output.position].toTensor(), numbers);
    case DirectOutput::Kind::size:
      return PyLong_FromLongLong(numbers[output.position]);
    case DirectOutput::Kind::value:
      break;
  }
  return THPVariable_Wrap(values[output.position].toTensor());
}

at::Tensor make_alias(const at::Tensor& tensor) {
  const at::AutoGradMode mode(true);
  return at::alias(tensor);
}

// Makes the primals behind the arguments. False if autocast's cache is not as the region expects it.
bool add_made(const RegionLayout& region, std::vector<c10::IValue>& inputs) {
  if (region.is_nested && *region.is_nested != is_autocast_nested()) {
    return false;
  }
  for (const auto& [primal, dtype] : region.made) {
    const auto& tensor = inputs[primal].toTensor();
    auto made = dtype ? cached_cast(tensor, *dtype) : make_alias(tensor);
    if (made.scalar_type() != dtype.value_or(made.scalar_type())) {
      return false;
    }
    inputs.emplace_back(std::move(made));
  }
  return true;
}

bool has_hooks(const at::Tensor& tensor) {
  return !torch::autograd::impl::hooks(tensor).empty() || tensor.retains_grad();
}

// True if the arguments are as those were that the region's inner gradients were traced with.
bool are_as_traced(const DirectCall& direct, const std::vector<c10::IValue>& inputs) {
  const auto is_leaf = [&](size_t position) { return inputs[position].toTensor().is_leaf(); };
  const auto is_heard = [&](size_t position) { return has_hooks(inputs[position].toTensor()); };
  return std::all_of(direct.leaves.begin(), direct.leaves.end(), is_leaf) &&
      std::none_of(direct.unheard.begin(), direct.unheard.end(), is_heard);
}

// Whether the region cut at leaves must serve the call: a hook on a leaf has to run as soon as its gradient is there.
bool must_split(const RegionLayout& region, const std::vector<c10::IValue>& inputs) {
  return !region.is_split_at_leaves && !region.segments.empty() && has_gradient_hooks(inputs);
}

// Whether the call would record where eager does not: grad mode may be on inside of inference mode.
bool is_recording_forbidden(const RegionLayout& region) {
  return !region.segments.empty() && c10::InferenceMode::is_enabled();
}

// Whether this call's backward comes right behind it.
bool is_joint(const DirectCall& direct) {
  return direct.joint && direct.joint->is_on() && !is_anybody_listening();
}

c10::Device device_of(const RegionLayout& region) {
  return region.segments.front().entries.front().options.device();
}

// Whether a call that makes gradients of gradients on a device would make its nodes in the order in which they were traced: those of the
// device's thread have higher numbers than all of this one's. What the loss leads to besides is not known, unless it goes to backward.
bool are_nodes_in_order(const DirectCall& direct, uint64_t start) {
  const auto& region = *direct.region;
  return region.num_nodes_elsewhere == 0 || (is_joint(direct) && device_counts_from(device_of(region), start + region.num_nodes));
}

// A new reference.
PyObject* make_outputs(
    const DirectCall& direct,
    const std::vector<c10::IValue>& inputs,
    const std::vector<c10::IValue>& values,
    const CallNumbers& numbers) {
  THPObjectPtr results(PyTuple_New(static_cast<Py_ssize_t>(direct.outputs.size())));
  if (!results) {
    throw python_error();
  }
  for (size_t i = 0; i < direct.outputs.size(); ++i) {
    PyObject* made = make_output(direct.outputs[i], inputs, values, numbers, results.get());
    if (made == nullptr) {
      throw python_error();
    }
    PyTuple_SET_ITEM(results.get(), i, made);
  }
  return results.release();
}

// The tensors of a tuple; undefined ones for the rest.
torch::autograd::variable_list tensors_of(PyObject* tuple) {
  torch::autograd::variable_list tensors;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(tuple); ++i) {
    PyObject* item = PyTuple_GET_ITEM(tuple, i);
    tensors.push_back(THPVariable_Check(item) ? THPVariable_Unpack(item) : at::Tensor());
  }
  return tensors;
}

PyObject* try_direct(const DirectCall& direct, PyObject* const* arguments, Py_ssize_t count) {
  HANDLE_TH_ERRORS
  std::vector<c10::IValue> inputs;
  inputs.reserve(count);
  for (Py_ssize_t i = 0; i < count; ++i) {
    inputs.push_back(to_ivalue(arguments[i]));
  }
  const auto start = at::sequence_number::peek();
  if (direct.region->was_expanded || must_split(*direct.region, inputs) || is_recording_forbidden(*direct.region) ||
      is_watched(inputs, direct.may_be_dropped) || !are_as_traced(direct, inputs) || !are_nodes_in_order(direct, start) ||
      !add_made(*direct.region, inputs)) {
    return PyObject_Vectorcall(direct.slow.ptr(), arguments, count, nullptr);
  }
  const CallNumbers numbers(direct, inputs);
  if (is_joint(direct)) {
    ForwardBackwardCall call(direct.region, std::move(inputs), direct.loss, start);
    THPObjectPtr results(make_outputs(direct, call.primals(), call.values(), numbers));
    ForwardBackwardCall::wait(std::move(call));
    count_nodes_to(start + direct.region->num_nodes);
    if (direct.region->num_nodes_elsewhere > 0) {
      owe_nodes(device_of(*direct.region), direct.region->num_nodes_elsewhere);
    }
    return results.release();
  }
  const auto made_before = made_nodes(*direct.region, inputs);
  const auto [values, segments] = call_region(direct.region, inputs, numbers.shapes(), start);
  THPObjectPtr results(make_outputs(direct, inputs, values, numbers));
  if (!made_before.empty()) {
    put_in_order(*direct.region, made_before, segments, tensors_of(results.get()), start);
  }
  count_nodes_to(start + direct.region->num_nodes);
  return results.release();
  END_HANDLE_TH_ERRORS
}

// The error that is set, as an object with its traceback; no error is set any more.
py::object fetched_error() {
  PyObject *type = nullptr, *value = nullptr, *trace = nullptr;
  PyErr_Fetch(&type, &value, &trace);
  PyErr_NormalizeException(&type, &value, &trace);
  if (trace) {
    PyException_SetTraceback(value, trace);
  }
  Py_XDECREF(type);
  Py_XDECREF(trace);
  return py::reinterpret_steal<py::object>(value);
}

at::Tensor generator_state() {
  auto generator = at::globalContext().defaultGenerator(at::kCPU);
  const std::lock_guard<std::mutex> lock(generator.mutex());
  return generator.get_state();
}

PyObject* call_direct(PyObject* self, PyObject* const* arguments, Py_ssize_t count) {
  const auto& direct = *static_cast<DirectCall*>(PyCapsule_GetPointer(self, nullptr));
  const at::Tensor before = direct.draws ? generator_state() : at::Tensor();
  PyObject* results = try_direct(direct, arguments, count);
  if (!results && !direct.raised.is_none() && PyErr_ExceptionMatches(PyExc_Exception)) {
    const py::object error = fetched_error();
    const THPObjectPtr state(THPVariable_Wrap(before));
    results = PyObject_CallFunctionObjArgs(direct.raised.ptr(), error.ptr(), state.get(), nullptr);
    if (results == Py_None) { // nothing was returned in their place, and nothing else was raised
      Py_DECREF(results);
      results = nullptr;
      PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(error.ptr())), error.ptr());
    }
  }
  return results;
}

PyMethodDef direct_method = {
    "gradc_region", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(&call_direct)), METH_FASTCALL, nullptr};

} // namespace

py::object make_direct(
    std::shared_ptr<RegionLayout> region,
    const py::list& outputs,
    py::object slow,
    py::object raised,
    bool draws,
    bool may_be_dropped,
    std::vector<size_t> leaves,
    std::vector<size_t> unheard,
    std::shared_ptr<const StraightLoss> joint,
    size_t loss,
    const py::object& numbers,
    py::object sizes,
    size_t num_shapes) {
  auto direct = std::make_unique<DirectCall>();
  direct->slow = std::move(slow);
  direct->raised = std::move(raised);
  direct->draws = draws;
  direct->may_be_dropped = may_be_dropped;
  direct->leaves = std::move(leaves);
  direct->unheard = std::move(unheard);
  for (const py::handle output : outputs) {
    direct->outputs.push_back(read_output(output));
  }
  if (joint && may_be_joint(*region, direct->outputs, loss)) {
    direct->joint = std::move(joint);
    direct->loss = direct->outputs[loss].position;
    direct->may_be_dropped = false; // a joint call saves nothing, and a checkpoint counts what is saved
  }
  if (!numbers.is_none()) {
    direct->numbers = std::make_unique<Bindings>([function = keep(numbers)](const Symbols& symbols) {
      std::vector<Value> values;
      for (const auto& number : (*function)(*py::cast(symbols))) {
        values.emplace_back(number.cast<int64_t>());
      }
      return values;
    });
    direct->sizes = std::move(sizes);
    direct->num_shapes = num_shapes;
  }
  direct->region = std::move(region);
  const auto capsule = py::reinterpret_steal<py::object>(PyCapsule_New(direct.get(), nullptr, [](PyObject* held) {
    delete static_cast<DirectCall*>(PyCapsule_GetPointer(held, nullptr));
  }));
  if (!capsule) {
    throw py::error_already_set();
  }
  direct.release();
  return py::reinterpret_steal<py::object>(PyCFunction_New(&direct_method, capsule.ptr()));
}

} // namespace gradc
