// Candidates, made from a gradc.executor.candidates.CandidateSpec, and the choice that a plan is given.
#include "executor/csrc/bind_choice.h"

#include "csrc/keep.h"
#include "csrc/spec.h"
#include "executor/core/csrc/below_autograd.h"
#include "executor/core/csrc/choice.h"

#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/jit/python/pybind_utils.h>

namespace py = pybind11;

namespace gradc {
namespace {

using Sizes = std::vector<int64_t>;

std::pair<std::optional<Meta>, c10::IValue> make_input(const py::handle& given) {
  if (given.is_none()) {
    return {std::nullopt, c10::IValue()};
  }
  if (PyLong_Check(given.ptr())) {
    return {std::nullopt, given.cast<int64_t>()};
  }
  const auto [dtype, sizes, strides] = as<std::tuple<c10::ScalarType, Sizes, Sizes>>(given, "CandidateSpec.inputs");
  return {Meta{dtype, sizes, strides, 0}, c10::IValue()};
}

Origin make_origin(const std::pair<std::string, int64_t>& given) {
  using Kind = Origin::Kind;
  static const Words<Kind> kinds = {
      {"made", Kind::made}, {"input", Kind::input}, {"again", Kind::again}, {"number", Kind::number}, {"none", Kind::none}};
  return {word(given.first, kinds, "CandidateSpec.outputs"), given.second};
}

std::shared_ptr<Candidate> make_candidate(const py::object& object) {
  const Spec spec("CandidateSpec", object);
  CandidateSpec made;
  made.path = spec.get<std::string>("path");
  made.num_threads = spec.get<int64_t>("num_threads");
  for (const py::handle input : spec["inputs"]) {
    made.inputs.push_back(make_input(input));
  }
  made.constants = spec.get<std::vector<at::Tensor>>("constants");
  for (const auto& origin : spec.all<std::pair<std::string, int64_t>>("outputs")) {
    made.outputs.push_back(make_origin(origin));
  }
  made.written = spec.get<std::vector<size_t>>("written");
  made.counted = spec.get<std::vector<std::pair<size_t, int64_t>>>("counted");
  made.views = spec.get<std::vector<std::tuple<size_t, bool, size_t>>>("views");
  made.may_raise = spec.get<bool>("may_raise");
  spec.refuse_others();
  const py::gil_scoped_release no_gil;
  return std::make_shared<Candidate>(std::move(made));
}

py::list as_list(const std::vector<c10::IValue>& values) {
  py::list objects;
  for (const c10::IValue& value : values) {
    objects.append(torch::jit::toPyObject(value));
  }
  return objects;
}

py::list run_candidate(const Candidate& candidate, const py::list& arguments) {
  Choice::Inputs inputs;
  for (const py::handle argument : arguments) {
    inputs.push_back(THPVariable_Check(argument.ptr()) ? c10::IValue(THPVariable_Unpack(argument.ptr())) : make_input(argument).second);
  }
  TORCH_CHECK(candidate.takes(inputs), "gradc: code that was compiled for other inputs");
  {
    const py::gil_scoped_release no_gil;
    const BelowAutograd below;
    const NoAutocast autocast = no_autocast();
    inputs = candidate.run(std::move(inputs));
  }
  return as_list(inputs);
}

std::shared_ptr<Choice> make_choice(int64_t num_calls, size_t num_tried, const py::object& ask) {
  return std::make_shared<Choice>(num_calls, num_tried, [ask = keep(ask)](const auto& choice, const Choice::Inputs& inputs) {
    const py::gil_scoped_acquire gil;
    (*ask)(choice, as_list(inputs));
  });
}

void offer(Choice& choice, const std::shared_ptr<Candidate>& candidate, const py::object& choose, const py::object& failed) {
  const auto ask = [choose = keep(choose)](double steps, double code) {
    const py::gil_scoped_acquire gil;
    return (*choose)(steps, code).cast<bool>();
  };
  const auto tell = [failed = keep(failed)](const std::string& what) {
    const py::gil_scoped_acquire gil;
    (*failed)(what);
  };
  choice.offer(candidate, Judge{ask, tell});
}

} // namespace

void bind_choice(py::module_& module) {
  py::class_<Candidate, std::shared_ptr<Candidate>>(module, "Candidate", "Code that was compiled for a Program ahead of time.")
      .def(py::init(&make_candidate))
      .def("__call__", torch::wrap_pybind_function(run_candidate), "Its outputs, for a list of inputs.");
  py::class_<Choice, std::shared_ptr<Choice>>(module, "Choice", "Which way each run of a plan goes: by its steps, or by a candidate.")
      .def(py::init(&make_choice), py::arg("num_calls"), py::arg("num_tried"), py::arg("ask"))
      .def("offer", &offer)
      .def_property_readonly(
          "is_wanted", [](const std::shared_ptr<Choice>& choice) { return choice.use_count() > 2; },
          "Whether a plan still has it, beside Python and this call.");
  static_cast<py::class_<Plan, std::shared_ptr<Plan>>>(module.attr("Plan"))
      .def("let_choose", [](Plan& plan, const std::shared_ptr<Choice>& choice) { plan.choice = choice; },
          "Not to be called once the plan runs.");
}

} // namespace gradc
