// Plans as Python objects: made from a gradc.executor.plan.PlanSpec, called with a list.
#include "executor/csrc/bind.h"

#include "csrc/keep.h"
#include "csrc/spec.h"
#include "executor/core/csrc/device_graph.h"
#include "executor/core/csrc/devices.h"
#include "executor/core/csrc/large_memory.h"
#include "executor/core/csrc/plan.h"
#include "executor/core/csrc/prove.h"
#include "executor/core/csrc/sized_plans.h"
#include "executor/cpu/csrc/iterated.h"
#include "executor/cpu/csrc/kernels.h"
#include "executor/cpu/csrc/onednn.h"
#include "executor/csrc/limit.h"

#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/jit/python/pybind_utils.h>
#include <torch/csrc/utils/python_arg_parser.h>

namespace py = pybind11;

namespace gradc {
namespace {

[[noreturn]] void raise_unsupported(const std::string& kind, const std::string& detail) {
  const py::object error = py::module_::import("gradc.errors").attr("UnsupportedError")(kind, detail);
  PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(error.ptr())), error.ptr());
  throw py::error_already_set();
}

c10::IValue number_or_bool(py::handle value) {
  if (PyBool_Check(value.ptr())) {
    return value.cast<bool>();
  }
  if (PyFloat_Check(value.ptr())) {
    return value.cast<double>();
  }
  return value.cast<int64_t>();
}

// `type` is null for an output, which is a number.
Value convert(py::handle value, const c10::TypePtr& type) {
  return Value(type ? torch::jit::toIValue(value, type) : number_or_bool(value));
}

// Makes a Plan from a PlanSpec, whose field names are this class's vocabulary.
class Builder {
 public:
  Builder(const py::handle& spec, py::object at_sizes) : spec_("PlanSpec", spec), at_sizes_(std::move(at_sizes)) {}

  std::shared_ptr<Plan> build() {
    plan_->name = spec_.get<std::string>("name");
    for (const py::handle meta : spec_["metas"]) {
      plan_->metas.push_back(make_meta(meta));
    }
    plan_->is_static = spec_.get<bool>("is_static");
    plan_->is_dispatched = spec_.get<bool>("is_dispatched");
    plan_->inputs = spec_.get<std::vector<Index>>("inputs");
    plan_->unread = spec_.get<std::vector<Index>>("unread");
    plan_->written = spec_.get<std::vector<Index>>("written");
    for (const auto& [slot, tensor] : spec_.all<std::pair<Index, at::Tensor>>("constants")) {
      plan_->owned.emplace_back(slot, tensor);
    }
    for (const py::handle step : spec_["steps"]) {
      plan_->steps.push_back(make_step(Spec("Step", step)));
    }
    for (const py::handle output : spec_["outputs"]) {
      plan_->outputs.push_back(make_operand(output, nullptr));
    }
    add_symbols();
    spec_.refuse_others();
    return plan_;
  }

 private:
  static std::optional<Meta> make_meta(py::handle given) {
    if (given.is_none()) {
      return std::nullopt;
    }
    using Sizes = std::vector<int64_t>;
    const auto [dtype, sizes, strides, offset, device] =
        as<std::tuple<c10::ScalarType, Sizes, Sizes, int64_t, c10::Device>>(given, "PlanSpec.metas");
    return Meta{dtype, sizes, strides, offset, device};
  }

  Step make_step(const Spec& spec) {
    Step step{find_op(spec)};
    add_operands(step, spec);
    for (const auto& out : spec.all<std::optional<Index>>("outs")) {
      step.outs.push_back(out.value_or(-1));
    }
    step.deaths = spec.get<std::vector<Index>>("deaths");
    const auto symbol = c10::Symbol::fromQualString(step.op.operator_name().name);
    step.is_foreign = !symbol.is_aten() && !symbol.is_prims();
    plan_->has_foreign_steps = plan_->has_foreign_steps || step.is_foreign;
    if (!step.is_foreign && !plan_->is_dispatched && tracks_versions(step.op)) {
      step.writes = spec.get<std::vector<Index>>("writes");
      step.shares = spec.get<std::vector<std::pair<Index, Index>>>("shares");
    }
    for (const auto& [device, dtype] : spec.all<std::pair<std::string, c10::ScalarType>>("autocast")) {
      step.autocast.emplace_back(c10::Device(device).type(), dtype);
    }
    for (const auto& [slot, base, offset, is_same] : spec.all<std::tuple<Index, Index, int64_t, bool>>("views")) {
      step.views.push_back({slot, base, offset, is_same});
    }
    step.kept = spec.get<std::vector<Index>>("kept");
    step.reuse = spec.get<std::optional<Index>>("reuse").value_or(-1);
    if (const auto known = spec.get<std::optional<Index>>("known")) {
      step.known = {Operand::Kind::slot, *known};
      step.reads.push_back(*known);
    }
    if (const auto device = spec.get<std::optional<c10::Device>>("device")) {
      step.device = device->type();
    }
    spec.refuse_others({"writes", "shares"}); // of ops that leave versions alone
    if (!plan_->is_dispatched) {
      choose_kernel(step);
    }
    return step;
  }

  void add_operands(Step& step, const Spec& spec) {
    const auto& arguments = step.op.schema().arguments();
    const torch::jit::ToIValueAllowNumbersAsTensors numbers(allows_numbers_as_tensors(step.op));
    size_t position = 0;
    for (const py::handle operand : spec["operands"]) {
      step.operands.push_back(make_argument(operand, arguments.at(position++)));
    }
  }

  static c10::OperatorHandle find_op(const Spec& spec) {
    const c10::OperatorName name(spec.get<std::string>("name"), spec.get<std::string>("overload"));
    const auto found = c10::Dispatcher::singleton().findSchema(name);
    if (!found) {
      raise_unsupported("operator that the dispatcher does not know", c10::toString(name));
    }
    return *found;
  }

  // As in eager, add_(1) may be add_.Tensor with a number, which becomes a tensor that does not promote dtypes.
  static bool allows_numbers_as_tensors(const c10::OperatorHandle& op) {
    const auto symbol = c10::Symbol::fromQualString(op.operator_name().name);
    return symbol.is_prims() || (symbol.is_aten() && torch::should_allow_numbers_as_tensors(symbol.toUnqualString()));
  }

  // Ops that eager's view tracking does not know leave version counters alone, and so do we.
  // A kernel that writes into a list of tensors, or copies what it made into `out`, calls ops in place, which count it.
  static bool tracks_versions(const c10::OperatorHandle& op) {
    const auto& [name, overload] = op.operator_name();
    return name.starts_with("aten::_foreach_") || op.hasKernelForDispatchKey(c10::DispatchKey::ADInplaceOrView) ||
        op.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd) ||
        (overload.ends_with("out") && op.hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutograd));
  }

  void choose_kernel(Step& step) {
    for (const Operand& operand : step.operands) {
      add_reads(step, operand);
    }
    choose_kernels(*plan_, step);
    if (!plan_->device && step.device) {
      plan_->device = kernels_of(*step.device);
    }
  }

  void add_reads(Step& step, const Operand& operand) {
    if (operand.kind == Operand::Kind::slot) {
      step.reads.push_back(operand.index);
    } else if (operand.kind == Operand::Kind::pack) {
      for (const Operand& item : plan_->packs[operand.index].items) {
        add_reads(step, item);
      }
    }
  }

  Operand make_argument(py::handle given, const c10::Argument& argument) {
    const auto [kind, payload] = read_operand(given);
    try {
      if (kind == OperandKind::by_default) {
        TORCH_CHECK(argument.default_value(), "argument ", argument.name(), " is missing");
        return add_constant(Value(*argument.default_value()));
      }
      return make_operand(given, argument.real_type());
    } catch (const SpecError&) {
      throw;
    } catch (const std::exception& error) {
      raise_unsupported("argument that has no native form", argument.name() + ": " + error.what());
    }
  }

  enum class OperandKind { constant, slot, bound, pack, by_default };

  static std::pair<OperandKind, py::object> read_operand(py::handle given) {
    using Kind = OperandKind;
    static const Words<Kind> kinds = {
        {"constant", Kind::constant}, {"slot", Kind::slot}, {"bound", Kind::bound}, {"pack", Kind::pack}, {"default", Kind::by_default}};
    if (given.is_none()) {
      return {Kind::constant, py::none()};
    }
    const auto [kind, payload] = as<std::pair<std::string, py::object>>(given, "an operand of a PlanSpec");
    return {word(kind, kinds, "the kind of an operand of a PlanSpec"), payload};
  }

  Operand make_operand(py::handle given, const c10::TypePtr& type) {
    const auto [kind, payload] = read_operand(given);
    switch (kind) {
      case OperandKind::slot:
        return {Operand::Kind::slot, payload.cast<Index>()};
      case OperandKind::pack:
        return make_pack(payload, type);
      case OperandKind::bound:
        return make_bound(payload.cast<size_t>(), type);
      case OperandKind::constant:
        return add_constant(payload.is_none() ? Value(none_of(type)) : convert(payload, type));
      case OperandKind::by_default:
        break;
    }
    throw SpecError("gradc: an operand of a PlanSpec is a default, outside of a call");
  }

  // Where the schema has a tensor that may not be left out, Python's None is an undefined one: what attention returns, and its
  // backward takes, on CUDA.
  static c10::IValue none_of(const c10::TypePtr& type) {
    return type && type->kind() == c10::TypeKind::TensorType ? c10::IValue(at::Tensor()) : c10::IValue();
  }

  Operand make_bound(size_t index, const c10::TypePtr& type) {
    bound_types_.resize(std::max(bound_types_.size(), index + 1));
    bound_types_[index] = type;
    return {Operand::Kind::bound, static_cast<Index>(index)};
  }

  Operand make_pack(py::handle items, const c10::TypePtr& type) {
    Pack pack{element_type(type)};
    for (const py::handle item : items) {
      pack.items.push_back(make_operand(item, pack.element));
    }
    plan_->packs.push_back(std::move(pack));
    return {Operand::Kind::pack, static_cast<Index>(plan_->packs.size() - 1)};
  }

  static c10::TypePtr element_type(const c10::TypePtr& type) {
    if (const auto optional = type->cast<c10::OptionalType>()) {
      return element_type(optional->getElementType());
    }
    const auto list = type->cast<c10::ListType>();
    TORCH_CHECK(list, "a list is given where the schema wants ", type->str());
    return list->getElementType();
  }

  Operand add_constant(Value value) {
    plan_->constants.push_back(std::move(value));
    return {Operand::Kind::constant, static_cast<Index>(plan_->constants.size() - 1)};
  }

  void add_symbols() {
    for (const auto& [kind, position, dimension] : spec_.all<SymbolSpec>("symbols")) {
      plan_->symbols.push_back({symbol_kind(kind, spec_.where("symbols")), static_cast<Index>(position), dimension});
    }
    if (const py::object bind = spec_["bind"]; !bind.is_none()) {
      plan_->bindings = std::make_unique<Bindings>(
          [function = keep(bind), types = bound_types_](const Symbols& symbols) { return bind_symbols(*function, types, symbols); });
    }
    const auto of_sizes = spec_.get<std::vector<size_t>>("size_symbols");
    if (plan_->device && !of_sizes.empty() && !at_sizes_.is_none()) {
      plan_->sized = std::make_shared<SizedPlans>(of_sizes, [function = keep(at_sizes_)](const Symbols& sizes, const Layouts& layouts) {
        const py::gil_scoped_acquire gil;
        return (*function)(sizes, in_python(layouts)).cast<std::shared_ptr<Plan>>();
      });
    }
  }

  static py::list in_python(const Layouts& layouts) {
    py::list list;
    for (const auto& layout : layouts) {
      list.append(layout ? py::object(py::make_tuple(layout->sizes, layout->strides, layout->offset)) : py::none());
    }
    return list;
  }

  static std::vector<Value> bind_symbols(
      const py::object& function, const std::vector<c10::TypePtr>& types, const Symbols& symbols) {
    const py::gil_scoped_acquire gil;
    const torch::jit::ToIValueAllowNumbersAsTensors numbers(true);
    const auto values = function(*py::cast(symbols)).cast<py::tuple>();
    std::vector<Value> bound;
    for (size_t i = 0; i < types.size(); ++i) {
      bound.push_back(convert(values[i], types[i]));
    }
    return bound;
  }

  Spec spec_;
  const py::object at_sizes_; // of SizedPlans; None where there are none
  std::shared_ptr<Plan> plan_ = std::make_shared<Plan>();
  std::vector<c10::TypePtr> bound_types_;
};

c10::IValue unwrap(PyObject* value) {
  if (THPVariable_Check(value)) {
    return THPVariable_Unpack(value);
  }
  return value == Py_None ? c10::IValue() : number_or_bool(value);
}

PyObject* wrap(c10::IValue value) {
  if (value.isTensor()) {
    return THPVariable_Wrap(std::move(value).toTensor());
  }
  return torch::jit::toPyObject(std::move(value)).release().ptr();
}

std::vector<c10::IValue> take_all(const py::list& arguments) {
  std::vector<c10::IValue> inputs;
  inputs.reserve(arguments.size());
  for (const py::handle argument : arguments) {
    inputs.push_back(unwrap(argument.ptr()));
  }
  if (PyList_SetSlice(arguments.ptr(), 0, PyList_GET_SIZE(arguments.ptr()), nullptr) != 0) {
    throw py::error_already_set();
  }
  return inputs;
}

py::list call_plan(const Plan& plan, const py::list& arguments) {
  std::vector<c10::IValue> inputs = take_all(arguments);
  std::vector<c10::IValue> outputs;
  {
    const py::gil_scoped_release no_gil;
    outputs = run(plan, std::move(inputs));
  }
  py::list results(outputs.size());
  for (size_t i = 0; i < outputs.size(); ++i) {
    PyList_SET_ITEM(results.ptr(), static_cast<Py_ssize_t>(i), wrap(std::move(outputs[i])));
  }
  return results;
}

std::unique_ptr<Limit> make_limit(const std::shared_ptr<Plan>& plan, const py::list& inputs) {
  return std::make_unique<Limit>(plan, take_all(inputs));
}

std::vector<std::tuple<std::string, bool, double>> each_of_limit(Limit& limit, int64_t repeats) {
  std::vector<std::tuple<std::string, bool, double>> found;
  for (auto& [what, is_direct, seconds] : limit.each(repeats)) {
    found.emplace_back(std::move(what), is_direct, seconds);
  }
  return found;
}

std::pair<double, double> time_limit(Limit& limit, int64_t repeats) {
  const py::gil_scoped_release no_gil;
  const auto [kernels, replay] = limit.time(repeats);
  return {kernels, replay};
}

// A trial in Python is called with `numbers(sizes, dtype)`, and says whether it holds.
bool prove_in_python(const std::string& kernel, const py::function& trial) {
  return prove({kernel}, [&](TrialNumbers numbers) {
    const py::cpp_function function([&](const std::vector<int64_t>& sizes, c10::ScalarType dtype) { return numbers(sizes, dtype); });
    return trial(function).cast<bool>();
  });
}

std::vector<std::tuple<std::string, c10::ScalarType, std::vector<int64_t>, bool>> list_proofs() {
  std::vector<std::tuple<std::string, c10::ScalarType, std::vector<int64_t>, bool>> list;
  for (const auto& [claim, holds] : proofs()) {
    list.emplace_back(claim.kernel, claim.dtype, claim.shape, holds);
  }
  return list;
}

size_t count_typed(const Plan& plan) {
  return std::count_if(plan.steps.begin(), plan.steps.end(), [](const Step& step) { return step.kernel != nullptr; });
}

size_t count_direct(const Plan& plan) {
  return std::count_if(plan.steps.begin(), plan.steps.end(), [](const Step& step) { return step.exact.direct != nullptr; });
}

} // namespace

SymbolSource::Kind symbol_kind(const std::string& kind, const std::string& where) {
  using Kind = SymbolSource::Kind;
  static const Words<Kind> kinds = {{"int", Kind::integer}, {"size", Kind::size}, {"stride", Kind::stride}};
  return word(kind, kinds, where);
}

void bind_executor(py::module_& module) {
  install_large_memory();
  module.def("out_variants", [] { return py::frozenset(py::cast(ops_with_out())); }, "Ops that can write into memory given to them.");
  module.def("iterated_ops", [] { return py::frozenset(py::cast(iterated_ops())); }, "Ops whose iterator is set up once, where all is laid out as captured.");
  module.def(
      "have_same_bits", static_cast<bool (*)(const at::Tensor&, const at::Tensor&)>(&have_same_bits), "Of contiguous tensors: -0 is not 0, a NaN is like any other.");
  module.def(
      "prove", &prove_in_python, py::arg("kernel"), py::arg("trial"), "Whether a trial holds for numbers of every kind; tried once for each kernel.");
  module.def("set_runs_before_graphs", &set_runs_before_graphs, py::arg("runs"), "After how many runs call by call a plan is recorded.");
  module.def(
      "tell_of_device_graphs",
      [](const py::function& tell) {
        tell_of_device_graphs([tell = keep(tell)](const std::string& what, const std::string& plan) {
          const py::gil_scoped_acquire gil;
          (*tell)(what, plan);
        });
      },
      py::arg("tell"), "Whom to tell what became of a plan: (\"recorded\" or \"by calls: why\", the plan's name).");
  module.def(
      "set_runs_before_sized_plans", &set_runs_before_sized_plans, py::arg("runs"), "How often sizes come before a static plan is made for them.");
  module.def("keep_lent", &keep_lent, py::arg("tensor"), "The memory of a graph that a tensor lies on is not written again.");
  module.def("release_large_memory", &release_large_memory, "Gives memory back that plans have freed and nobody uses. Returns the bytes.");
  module.def("num_replays", &num_replays, "How often recordings of plans were replayed in this process.");
  module.def("has_onednn", &has_onednn, "True where the functions of torch's own oneDNN are found, so that its primitives are kept.");
  module.def("proofs", &list_proofs, "What was proven or refused in this process: (kernel, dtype, shape, holds).");
  py::class_<Plan, std::shared_ptr<Plan>>(module, "Plan", "A Program, ready to run natively: called with a list, which it empties.")
      .def(
          py::init([](const py::object& spec, bool has_graphs, const py::object& at_sizes) {
            auto plan = Builder(spec, at_sizes).build();
            plan->graphs = has_graphs ? DeviceGraphs::of(*plan) : nullptr;
            return plan;
          }),
          py::arg("spec"), py::arg("has_graphs") = false, py::arg("at_sizes") = py::none())
      .def("__call__", torch::wrap_pybind_function(call_plan))
      .def_property_readonly("name", [](const Plan& plan) { return plan.name; })
      .def_property_readonly("num_steps", [](const Plan& plan) { return plan.steps.size(); })
      .def_property_readonly("num_typed", count_typed, "How many of the steps skip the dispatcher.")
      .def_property_readonly("num_direct", count_direct, "How many of them may go straight to memory.");
  py::class_<Limit>(module, "Limit", "The kernels of a plan by themselves, to be timed beside its runs.")
      .def(py::init(&make_limit), py::arg("plan"), py::arg("inputs"))
      .def_property_readonly("num_direct", &Limit::num_direct, "How many calls are on addresses alone.")
      .def("each", &each_of_limit, py::arg("repeats"), "Each call by itself: (what, whether on addresses alone, seconds).")
      .def_property_readonly("others", &Limit::others, "The ops of those that are with tensors. Views are neither.")
      .def("time", &time_limit, py::arg("repeats"), "The medians of seconds: (the kernels alone, a run of the plan).");
}

} // namespace gradc
