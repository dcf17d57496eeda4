#include "replay/csrc/bind.h"

#include "csrc/convert.h"
#include "csrc/keep.h"
#include "replay/csrc/replay.h"

#include <pybind11/stl.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/jit/python/pybind_utils.h>

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

std::vector<Waiting<Index>> make_waiting(const py::handle& all) {
  std::vector<Waiting<Index>> result;
  for (const py::handle waiting : all) {
    const auto [node, inputs] = waiting.cast<std::pair<uint32_t, std::vector<Index>>>();
    result.push_back({node, inputs});
  }
  return result;
}

// Each an int, or (coefficient, numbers of symbols).
std::vector<Term> make_terms(const py::handle& all) {
  std::vector<Term> terms;
  for (const py::handle term : all) {
    if (py::isinstance<py::int_>(term)) {
      terms.push_back({term.cast<int64_t>(), {}});
    } else {
      auto [coefficient, symbols] = term.cast<std::pair<int64_t, std::vector<uint32_t>>>();
      terms.push_back({coefficient, std::move(symbols)});
    }
  }
  return terms;
}

Piece make_piece(const py::handle& source) {
  Piece piece;
  const py::object runner = source.attr("runner");
  if (py::isinstance<Plan>(runner)) {
    piece.plan = runner.cast<std::shared_ptr<Plan>>();
  } else if (!runner.is_none()) {
    piece.runner = [held = keep(runner)](std::vector<c10::IValue> inputs) {
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
  piece.inputs = source.attr("inputs").cast<std::vector<Index>>();
  piece.symbols = source.attr("symbols").cast<std::vector<uint32_t>>();
  piece.dying = source.attr("dying").cast<std::vector<Index>>();
  piece.outputs = source.attr("outputs").cast<std::vector<Index>>();
  piece.nodes = source.attr("nodes").cast<std::vector<uint32_t>>();
  piece.grads = source.attr("grads").cast<std::vector<std::pair<uint32_t, Index>>>();
  piece.leaves = source.attr("leaves").cast<std::vector<uint32_t>>();
  return piece;
}

// From a gradc.replay.spec.BoundarySpec.
Boundary make_boundary(const py::handle& spec) {
  Boundary boundary;
  const py::object source = spec.attr("boundary"), after = source.attr("after");
  boundary.node = source.attr("node").cast<uint32_t>();
  boundary.inputs = source.attr("inputs").cast<std::vector<Index>>();
  boundary.is_stealable = source.attr("is_stealable").cast<std::vector<bool>>();
  boundary.dying = spec.attr("dying").cast<std::vector<Index>>();
  boundary.outputs = source.attr("outputs").cast<std::vector<Index>>();
  for (const py::handle expected : source.attr("expected")) {
    const auto head = expected.attr("head").cast<std::string>();
    const auto* bytes = reinterpret_cast<const uint8_t*>(head.data());
    boundary.metadata.emplace_back(bytes, bytes + head.size());
    boundary.numbers.push_back(make_terms(expected.attr("numbers")));
  }
  boundary.snapshot.done = after.attr("done").cast<std::vector<uint32_t>>();
  boundary.snapshot.not_ready = make_waiting(after.attr("not_ready"));
  boundary.snapshot.ready = make_waiting(after.attr("ready"));
  boundary.snapshot.results = after.attr("results").cast<std::vector<Index>>();
  return boundary;
}

// `spec`: a gradc.replay.spec.RecordingSpec, or None for a graph that runs in torch's engine. `offsets`: of the tensors, taken
// before the capture, or empty.
std::shared_ptr<Recording> make_recording(const Walk& walk, const py::object& spec, std::vector<int64_t> offsets) {
  auto recording = std::make_shared<Recording>();
  recording->key = Bytes(walk.key.data(), walk.key.data() + walk.key.size());
  recording->numbers = walk.numbers;
  recording->order = walk.order();
  recording->ties = walk.ties(recording->order);
  recording->is_uncapturable = spec.is_none();
  if (recording->is_uncapturable) {
    return recording;
  }
  recording->offsets = std::move(offsets);
  recording->num_slots = spec.attr("num_slots").cast<size_t>();
  recording->inputs = spec.attr("inputs").cast<std::vector<Index>>();
  for (const py::handle piece : spec.attr("pieces")) {
    recording->pieces.push_back(make_piece(piece));
  }
  for (const py::handle boundary : spec.attr("boundaries")) {
    recording->boundaries.push_back(make_boundary(boundary));
  }
  recording->results = spec.attr("results").cast<std::vector<Index>>();
  recording->terms = make_terms(spec.attr("terms"));
  recording->symbols = spec.attr("symbols").cast<std::vector<size_t>>();
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
