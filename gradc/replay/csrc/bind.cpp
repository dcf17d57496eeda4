#include "replay/csrc/bind.h"

#include "csrc/convert.h"
#include "csrc/keep.h"
#include "csrc/spec.h"
#include "replay/csrc/replay.h"

#include <pybind11/stl.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/jit/python/pybind_utils.h>

#include <functional>
#include <utility>

namespace py = pybind11;

namespace gradc {

namespace {

py::tuple call_replay(Walk& walk, const std::shared_ptr<Recording>& recording) {
  variable_list results;
  bool gave_up = false;
  {
    const py::gil_scoped_release no_gil;
    results = replay(walk, *recording, gave_up);
  }
  return py::make_tuple(to_python(results), gave_up);
}

std::vector<Waiting<Index>> make_waiting(const Spec& state, const char* field) {
  std::vector<Waiting<Index>> result;
  for (auto& [node, inputs] : state.all<std::pair<uint32_t, std::vector<Index>>>(field)) {
    result.push_back({node, std::move(inputs)});
  }
  return result;
}

// Each an int, or (coefficient, numbers of symbols).
std::vector<Term> make_terms(const Spec& spec, const char* field) {
  std::vector<Term> terms;
  for (const py::handle term : spec[field]) {
    if (py::isinstance<py::int_>(term)) {
      terms.push_back({as<int64_t>(term, spec.where(field)), {}});
    } else {
      auto [coefficient, symbols] = as<std::pair<int64_t, std::vector<uint32_t>>>(term, spec.where(field));
      terms.push_back({coefficient, std::move(symbols)});
    }
  }
  return terms;
}

// What runs a piece that has no plan: a function of Python's, from a list of inputs to tensors.
std::function<std::vector<c10::IValue>(std::vector<c10::IValue>)> make_runner(py::object function) {
  return [held = keep(std::move(function))](std::vector<c10::IValue> inputs) {
    const py::gil_scoped_acquire gil;
    return guarded([&] {
      py::list arguments;
      for (auto& input : inputs) {
        arguments.append(torch::jit::toPyObject(std::move(input)));
      }
      std::vector<c10::IValue> outputs;
      for (const py::handle output : (*held)(arguments)) {
        outputs.emplace_back(THPVariable_Unpack(output.ptr()));
      }
      return outputs;
    });
  };
}

// From a gradc.replay.pieces.Piece.
Piece make_piece(const py::handle& source) {
  const Spec spec("Piece", source);
  Piece piece;
  py::object runner = spec["runner"];
  if (py::isinstance<Plan>(runner)) {
    piece.plan = runner.cast<std::shared_ptr<Plan>>();
  } else if (!runner.is_none()) {
    piece.runner = make_runner(std::move(runner));
  }
  piece.inputs = spec.get<std::vector<Index>>("inputs");
  piece.symbols = spec.get<std::vector<uint32_t>>("symbols");
  piece.dying = spec.get<std::vector<Index>>("dying");
  piece.outputs = spec.get<std::vector<Index>>("outputs");
  piece.nodes = spec.get<std::vector<uint32_t>>("nodes");
  piece.grads = spec.get<std::vector<std::pair<uint32_t, Index>>>("grads");
  piece.leaves = spec.get<std::vector<uint32_t>>("leaves");
  piece.recounted = spec.get<std::vector<std::pair<uint32_t, uint32_t>>>("recounted");
  spec.refuse_others();
  return piece;
}

// From a gradc.capture.recording.EngineState.
Snapshot<Index> make_snapshot(const py::object& source) {
  const Spec spec("EngineState", source);
  Snapshot<Index> snapshot;
  snapshot.newly_done = spec.get<std::vector<uint32_t>>("newly_done");
  snapshot.not_ready = make_waiting(spec, "not_ready");
  snapshot.ready = make_waiting(spec, "ready");
  snapshot.results = spec.get<std::vector<Index>>("results");
  snapshot.views = spec.get<std::vector<Index>>("views");
  spec.refuse_others();
  return snapshot;
}

// From a gradc.replay.spec.BoundarySpec.
Boundary make_boundary(const py::handle& object) {
  const Spec spec("BoundarySpec", object);
  const py::object held = spec["boundary"];
  const Spec source("Boundary", held);
  Boundary boundary;
  boundary.node = source.get<uint32_t>("node");
  boundary.is_needed = source.get<bool>("is_needed");
  boundary.inputs = source.get<std::vector<Index>>("inputs");
  boundary.is_stealable = source.get<std::vector<bool>>("is_stealable");
  boundary.dying = spec.get<std::vector<Index>>("dying");
  boundary.outputs = source.get<std::vector<Index>>("outputs");
  for (const py::handle item : source["expected"]) {
    const Spec expected("Expected", item);
    const auto head = expected.get<std::string>("head");
    const auto* bytes = reinterpret_cast<const uint8_t*>(head.data());
    boundary.metadata.emplace_back(bytes, bytes + head.size());
    boundary.numbers.push_back(make_terms(expected, "numbers"));
    expected.refuse_others({"dtype"});
  }
  boundary.snapshot = make_snapshot(source["after"]);
  const auto is_result_stealable = source.get<std::vector<bool>>("is_result_stealable");
  for (const auto position : source.get<std::vector<size_t>>("dependent")) {
    boundary.holders.emplace_back(position, is_result_stealable.at(position));
  }
  const auto is_kept = source.get<std::vector<bool>>("is_kept");
  for (const auto position : source.get<std::vector<size_t>>("dependent_inputs")) {
    boundary.kept.emplace_back(position, is_kept.at(position));
  }
  source.refuse_others({"position"});
  spec.refuse_others();
  return boundary;
}

// `object`: a gradc.replay.spec.RecordingSpec, or None for a graph that runs in torch's engine. `offsets`: of the tensors, taken
// before the capture, or empty.
std::shared_ptr<Recording> make_recording(const Walk& walk, const py::object& object, std::vector<int64_t> offsets) {
  auto recording = std::make_shared<Recording>();
  recording->key = Bytes(walk.key.data(), walk.key.data() + walk.key.size());
  recording->numbers = walk.numbers;
  recording->order = walk.order();
  recording->ties = walk.ties(recording->order);
  recording->is_uncapturable = object.is_none();
  if (recording->is_uncapturable) {
    return recording;
  }
  const Spec spec("RecordingSpec", object);
  recording->offsets = std::move(offsets);
  recording->num_slots = spec.get<size_t>("num_slots");
  recording->inputs = spec.get<std::vector<Index>>("inputs");
  for (const py::handle piece : spec["pieces"]) {
    recording->pieces.push_back(make_piece(piece));
  }
  for (const py::handle boundary : spec["boundaries"]) {
    recording->boundaries.push_back(make_boundary(boundary));
  }
  recording->results = spec.get<std::vector<Index>>("results");
  recording->terms = make_terms(spec, "terms");
  recording->symbols = spec.get<std::vector<size_t>>("symbols");
  spec.refuse_others({"has_offsets"});
  return recording;
}

} // namespace

void bind_replay(py::module_& module) {
  py::class_<Recording, std::shared_ptr<Recording>>(module, "Recording", "A captured backward pass, ready to replay.")
      .def(py::init([](const Walk& walk, const py::object& spec, std::vector<int64_t> offsets) {
        return make_recording(walk, spec, std::move(offsets));
      }))
      .def_readonly("is_uncapturable", &Recording::is_uncapturable)
      .def_property_readonly("num_symbols", [](const Recording& recording) { return recording.symbols.size(); })
      .def("symbol_values", [](const Recording& recording, const Walk& walk) { return symbol_values(walk, recording); })
      .def_property_readonly("num_boundaries", [](const Recording& recording) { return recording.boundaries.size(); });
  py::class_<Recordings>(module, "Recordings", "Recordings by key, the least used dropped.")
      .def(py::init<size_t>())
      .def("find", &Recordings::find, py::arg("walk"), py::arg("is_proven") = true)
      .def("prove", &Recordings::prove)
      .def("keep", &Recordings::keep)
      .def("clear", &Recordings::clear)
      .def("__len__", &Recordings::size);
  module.def("replay", torch::wrap_pybind_function(call_replay), "Run a recording: (results, whether it gave up).");
}

} // namespace gradc
