#include "replay/csrc/bind.h"

#include "csrc/convert.h"
#include "nodes/csrc/segment_node.h"
#include "csrc/keep.h"
#include "capture/csrc/engine_run.h"

#include <c10/util/Type.h>
#include <pybind11/stl.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/functions/basic_ops.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/python_cpp_function.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/csrc/jit/python/pybind_utils.h>

namespace py = pybind11;

namespace gradc {

namespace {

using gradc::to_python;

py::list to_python(const std::vector<Waiting<at::Tensor>>& all) {
  py::list list;
  for (const auto& waiting : all) {
    list.append(py::make_tuple(waiting.node, to_python(waiting.inputs)));
  }
  return list;
}

const at::Tensor& to_tensor(const py::handle& value) {
  if (!THPVariable_Check(value.ptr())) {
    throw Unsupported(value.is_none() ? "gradient of None" : "gradient edge");
  }
  return THPVariable_Unpack(value.ptr());
}

// As THPEngine_run_backward in torch's python_engine.cpp, for tensors. Where that raises, this says Unsupported: then it does.
Request make_request(
    const py::sequence& tensors,
    const py::sequence& grads,
    bool keep_graph,
    const std::optional<py::sequence>& inputs,
    bool accumulates) {
  Request request;
  request.keep_graph = keep_graph;
  request.accumulates = accumulates;
  for (const py::handle value : tensors) {
    auto edge = torch::autograd::impl::gradient_edge(to_tensor(value));
    if (!edge.function) {
      throw Unsupported("root without a history");
    }
    request.roots.push_back(std::move(edge));
  }
  for (const py::handle value : grads) {
    request.grads.push_back(to_tensor(value));
  }
  if (request.roots.empty() || request.roots.size() != request.grads.size()) {
    throw Unsupported("roots and gradients that do not match");
  }
  if (!inputs || py::len(*inputs) == 0) {
    return request;
  }
  request.is_partial = true;
  for (const py::handle value : *inputs) {
    const at::Tensor& tensor = to_tensor(value);
    if (!tensor.requires_grad()) {
      throw Unsupported("input that requires no gradient");
    }
    auto node = tensor.grad_fn();
    if (!node) {
      node = torch::autograd::impl::try_get_grad_accumulator(tensor);
    }
    if (accumulates) {
      tensor.retain_grad();
    }
    if (node) {
      request.outputs.emplace_back(node, tensor.output_nr());
    } else {
      request.outputs.emplace_back(c10::make_intrusive<torch::autograd::Identity>(), 0);
    }
  }
  return request;
}

class PythonObserver : public Observer {
 public:
  explicit PythonObserver(py::object target) : target_(std::move(target)) {}
  void begin() override {
    call("begin");
  }
  void end() override {
    call("end");
  }
  void enter(uint32_t node, const variable_list& inputs) override {
    const py::gil_scoped_acquire gil;
    call("enter", node, to_python(inputs));
  }
  bool leave(uint32_t node, const variable_list& outputs) override {
    const py::gil_scoped_acquire gil;
    return guarded([&] { return target_.attr("leave")(node, to_python(outputs)).cast<bool>(); });
  }
  void boundary(
      uint32_t node, const variable_list& inputs, const variable_list& outputs, const std::vector<bool>& is_owned) override {
    const py::gil_scoped_acquire gil;
    call("boundary", node, to_python(inputs), to_python(outputs), is_owned);
  }
  void snapshot(Snapshot<at::Tensor> state) override {
    const py::gil_scoped_acquire gil;
    call("snapshot", state.done, to_python(state.not_ready), to_python(state.ready), to_python(state.results));
  }
  void accumulated(uint32_t node, const at::Tensor& grad) override {
    const py::gil_scoped_acquire gil;
    call("accumulated", node, to_python(grad));
  }

 private:
  template <typename... Arguments>
  void call(const char* name, Arguments&&... arguments) {
    const py::gil_scoped_acquire gil;
    guarded([&] { target_.attr(name)(std::forward<Arguments>(arguments)...); });
  }

  py::object target_;
};

// Returns the results as `target` knows them, and as they are to be returned.
py::tuple capture(Walk& walk, const py::object& target) {
  PythonObserver observer(target);
  variable_list known, results;
  {
    const py::gil_scoped_release no_gil;
    results = inside_engine(walk, [&] {
      LiveRun live(walk, &observer);
      known = live.run();
      return live.as_returned(known);
    });
  }
  return py::make_tuple(to_python(known), to_python(results));
}

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

Boundary make_boundary(const py::handle& source) {
  Boundary boundary;
  boundary.node = source.attr("node").cast<uint32_t>();
  boundary.inputs = source.attr("inputs").cast<std::vector<Index>>();
  boundary.is_owned = source.attr("is_owned").cast<std::vector<bool>>();
  boundary.dying = source.attr("dying").cast<std::vector<Index>>();
  boundary.outputs = source.attr("outputs").cast<std::vector<Index>>();
  for (const py::handle entry : source.attr("metadata")) {
    const auto [text, terms] = entry.cast<std::pair<std::string, py::sequence>>();
    const auto* bytes = reinterpret_cast<const uint8_t*>(text.data());
    boundary.metadata.emplace_back(bytes, bytes + text.size());
    boundary.numbers.push_back(make_terms(terms));
  }
  boundary.snapshot.done = source.attr("done").cast<std::vector<uint32_t>>();
  boundary.snapshot.not_ready = make_waiting(source.attr("not_ready"));
  boundary.snapshot.ready = make_waiting(source.attr("ready"));
  boundary.snapshot.results = source.attr("results").cast<std::vector<Index>>();
  return boundary;
}

// `layout`: a gradc.capture.capture.Layout, or None for a graph that runs in torch's engine. `offsets`: of the tensors, taken
// before the capture, or empty.
std::shared_ptr<Recording> make_recording(const Walk& walk, const py::object& layout, std::vector<int64_t> offsets) {
  auto recording = std::make_shared<Recording>();
  recording->key = Bytes(walk.key.data(), walk.key.data() + walk.key.size());
  recording->numbers = walk.numbers;
  recording->order = walk.order();
  recording->ties = walk.ties(recording->order);
  recording->is_live = layout.is_none();
  if (recording->is_live) {
    return recording;
  }
  recording->offsets = std::move(offsets);
  recording->num_slots = layout.attr("num_slots").cast<size_t>();
  recording->inputs = layout.attr("inputs").cast<std::vector<Index>>();
  for (const py::handle piece : layout.attr("pieces")) {
    recording->pieces.push_back(make_piece(piece));
  }
  for (const py::handle boundary : layout.attr("boundaries")) {
    recording->boundaries.push_back(make_boundary(boundary));
  }
  recording->results = layout.attr("results").cast<std::vector<Index>>();
  recording->terms = make_terms(layout.attr("terms"));
  recording->symbols = layout.attr("symbols").cast<std::vector<size_t>>();
  return recording;
}

// The recordings made so far, the last used first. At most `limit` are kept.
struct Recordings {
  explicit Recordings(size_t limit) : limit(limit) {}

  std::shared_ptr<Recording> find(const Walk& walk, bool is_proven) {
    const std::lock_guard<std::mutex> lock(mutex);
    for (auto it = known.begin(); it != known.end(); ++it) {
      if (fits(walk, **it, is_proven)) {
        known.splice(known.begin(), known, it);
        return known.front();
      }
    }
    return nullptr;
  }
  void keep(std::shared_ptr<Recording> recording) {
    std::list<std::shared_ptr<Recording>> dropped;
    const std::lock_guard<std::mutex> lock(mutex);
    known.push_front(std::move(recording));
    while (known.size() > limit) {
      dropped.splice(dropped.begin(), known, std::prev(known.end()));
    }
  }

  void prove(const std::shared_ptr<Recording>& recording, Numbers values) {
    constexpr size_t max_proven = 4096;
    const std::lock_guard<std::mutex> lock(mutex);
    if (recording->proven.size() >= max_proven) {
      recording->proven.clear();
    }
    recording->proven.insert(std::move(values));
  }

  size_t limit;
  std::mutex mutex;
  std::list<std::shared_ptr<Recording>> known;
};

// What a boundary's result must look like: (bytes, sizes and strides).
py::tuple metadata_of(const py::handle& value) {
  Bytes metadata;
  Numbers numbers;
  append_metadata(metadata, numbers, value.is_none() ? at::Tensor() : THPVariable_Unpack(value.ptr()));
  return py::make_tuple(py::bytes(reinterpret_cast<const char*>(metadata.data()), metadata.size()), numbers);
}

// Runs the walked graph's formulas on stand-ins, telling `target`. The graph keeps what it saved.
py::list trace(Walk& walk, const py::object& target, const py::list& tensors, const py::list& numbers, const py::dict& boundaries) {
  StandIns stand_ins;
  stand_ins.tensors = to_tensors(tensors);
  for (const py::handle number : numbers) {
    stand_ins.numbers.push_back(number.cast<c10::SymInt>());
  }
  for (const auto& [node, outputs] : boundaries) {
    stand_ins.boundaries.emplace(node.cast<uint32_t>(), to_tensors(outputs));
  }
  PythonObserver observer(target);
  variable_list results;
  {
    const py::gil_scoped_release no_gil;
    results = inside_engine(walk, [&] { return LiveRun(walk, &observer, &stand_ins).run(); });
  }
  return to_python(results);
}

py::bytes to_bytes(const Bytes& bytes, size_t begin, size_t end) {
  return py::bytes(reinterpret_cast<const char*>(bytes.data()) + begin, end - begin);
}

std::vector<int64_t> sizes_of(const variable_list& tensors) {
  std::vector<int64_t> sizes;
  for (const auto& tensor : tensors) {
    sizes.insert(sizes.end(), tensor.sizes().begin(), tensor.sizes().end());
  }
  return sizes;
}

// The sizes that a node's inputs must have, or a leaf's own, and those it holds for its formula.
std::vector<int64_t> node_sizes(const Walk& walk, size_t node) {
  std::vector<int64_t> sizes;
  const auto& live = walk.nodes.at(node);
  for (uint32_t i = 0; i < live.node->num_inputs(); ++i) {
    if (!live.node->input_metadata(i).was_default_constructed()) {
      for (const auto& size : live.node->input_metadata(i).shape_as_dim_vector()) {
        sizes.push_back(size.as_int_unchecked());
      }
    }
  }
  const auto held = walk.numbers.begin() + static_cast<int64_t>(live.sizes);
  sizes.insert(sizes.end(), held, held + static_cast<int64_t>(live.num_sizes));
  return sizes;
}

// Where, in the walk's numbers, the sizes stand that each result of a node must have: -1 for a result that nobody reads.
std::vector<int64_t> target_numbers(const Walk& walk, size_t node) {
  std::vector<int64_t> positions;
  for (const auto& edge : walk.nodes.at(node).node->next_edges()) {
    positions.push_back(edge.is_valid() ? static_cast<int64_t>(input_numbers(walk, edge)) : -1);
  }
  return positions;
}

// The kinds of hooks of each node that has any, in the order in which the engine calls them.
py::dict hooks_of(const Walk& walk) {
  py::dict all;
  for (size_t i = 0; i < walk.nodes.size(); ++i) {
    Node& node = *walk.nodes[i].node;
    py::list kinds;
    for (size_t k = 0; k < node.tensor_pre_hooks().size() + node.retains_grad_hooks().size(); ++k) {
      kinds.append("tensor_pre_hook");
    }
    for (size_t k = 0; k < node.pre_hooks().size(); ++k) {
      kinds.append("pre_hook");
    }
    for (size_t k = 0; k < node.post_hooks().size(); ++k) {
      kinds.append("post_hook");
    }
    if (node.tensor_post_acc_grad_hooks()) {
      kinds.append("post_acc_grad_hook");
    }
    if (py::len(kinds) > 0) {
      all[py::int_(i)] = kinds;
    }
  }
  return all;
}

// The tensors that a node held and no node before it did.
py::list held_by(const Walk& walk, size_t node) {
  const auto& live = walk.nodes.at(node);
  py::list held;
  for (size_t i = live.first_tensor; i < live.last_tensor; ++i) {
    held.append(to_python(walk.tensors.at(i)));
  }
  return held;
}

// A compiled region's node as (its gradc.backward.cache.BackwardCache, number of the segment, values of its symbols); None for
// another node.
py::object segment_of(const Walk& walk, size_t node) {
  const auto* segment = dynamic_cast<const SegmentNode*>(walk.nodes.at(node).node.get());
  if (!segment) {
    return py::none();
  }
  auto* backwards = static_cast<PyObject*>(segment->region().derive->backwards());
  return py::make_tuple(py::reinterpret_borrow<py::object>(backwards), segment->number(), segment->symbols());
}

// Which results of a node the engine will need.
std::vector<bool> needed_of(const Walk& walk, size_t node) {
  std::vector<bool> needed;
  for (const auto& edge : walk.nodes.at(node).node->next_edges()) {
    needed.push_back(edge.is_valid() && walk.nodes.at(walk.index_of(edge.function.get())).is_run());
  }
  return needed;
}

void bind_walk(py::module_& module) {
  py::class_<Walk>(module, "Walk", "A live autograd graph, walked: its nodes, saved tensors and key.")
      .def(
          py::init([](const py::sequence& tensors, const py::sequence& grads, bool keep_graph,
                      const std::optional<py::sequence>& inputs, bool accumulates) {
            return std::make_unique<Walk>(make_request(tensors, grads, keep_graph, inputs, accumulates));
          }))
      .def_property_readonly("num_nodes", [](const Walk& walk) { return walk.nodes.size(); })
      .def_property_readonly("tensors", [](const Walk& walk) { return to_python(walk.tensors); })
      .def_readonly("number_inputs", &Walk::number_inputs)
      .def_property_readonly("num_grads", [](const Walk& walk) { return walk.num_grads; })
      .def_property_readonly("key", [](const Walk& walk) { return to_bytes(walk.key, 0, walk.key.size()); })
      .def("name", [](const Walk& walk, size_t node) { return walk.nodes.at(node).node->name(); })
      .def("type", [](const Walk& walk, size_t node) {
        const Node& live = *walk.nodes.at(node).node;
        return c10::demangle(typeid(live).name());
      })
      .def("is_opaque", [](const Walk& walk, size_t node) { return walk.nodes.at(node).is_opaque; })
      .def("is_leaf", [](const Walk& walk, size_t node) { return walk.nodes.at(node).accumulate != nullptr; })
      .def("key_of", [](const Walk& walk, size_t node) {
        return to_bytes(walk.key, walk.nodes.at(node).begin, walk.nodes.at(node).end);
      })
      .def("variable", [](const Walk& walk, size_t node) { return to_python(walk.nodes.at(node).accumulate->variable); })
      .def("edges", [](const Walk& walk, size_t node) {
        std::vector<int32_t> targets;
        for (const auto& edge : walk.nodes.at(node).node->next_edges()) {
          targets.push_back(edge.is_valid() ? walk.index_of(edge.function.get()) : -1);
        }
        return targets;
      })
      .def("node", [](const Walk& walk, size_t node) {
        return py::reinterpret_steal<py::object>(torch::autograd::functionToPyObject(walk.nodes.at(node).node));
      })
      .def("held", held_by)
      .def("segment", segment_of)
      .def("needed", needed_of)
      .def("hooks", hooks_of)
      .def("root_key", [](const Walk& walk) { return to_bytes(walk.key, 0, walk.nodes.at(0).begin); })
      .def("root_sizes", [](const Walk& walk) { return sizes_of(walk.request.grads); })
      .def("node_sizes", node_sizes)
      .def_readonly("numbers", &Walk::numbers)
      .def_readonly("tensor_numbers", &Walk::tensor_numbers)
      .def("target_numbers", target_numbers)
      .def_property_readonly("order", &Walk::order);
}

} // namespace

void bind_engine(py::module_& module) {
  py::register_exception<Unsupported>(module, "Unsupported");
  bind_walk(module);
  py::class_<Recording, std::shared_ptr<Recording>>(module, "Recording", "A captured backward pass, ready to replay.")
      .def(py::init([](const Walk& walk, const py::object& layout, std::vector<int64_t> offsets) {
        return make_recording(walk, layout, std::move(offsets));
      }))
      .def_readonly("is_live", &Recording::is_live)
      .def_property_readonly("num_symbols", [](const Recording& recording) { return recording.symbols.size(); })
      .def("symbol_values", [](const Recording& recording, const Walk& walk) { return symbol_values(walk, recording); })
      .def_property_readonly("num_boundaries", [](const Recording& recording) { return recording.boundaries.size(); });
  py::class_<Recordings>(module, "Recordings", "Recordings by key, the least used dropped.")
      .def(py::init<size_t>())
      .def("find", &Recordings::find, py::arg("walk"), py::arg("is_proven") = true)
      .def("prove", &Recordings::prove)
      .def("drop", [](Recordings& recordings, const std::shared_ptr<Recording>& one) { recordings.known.remove(one); })
      .def("keep", &Recordings::keep)
      .def("clear", [](Recordings& recordings) { recordings.known.clear(); })
      .def("__len__", [](const Recordings& recordings) { return recordings.known.size(); });
  module.def("capture", torch::wrap_pybind_function(capture), "Run a walked graph live, telling an observer.");
  module.def("trace", torch::wrap_pybind_function(trace), "Run a walked graph's formulas on stand-ins, telling an observer.");
  module.def("replay", torch::wrap_pybind_function(call_replay), "Run a recording: (results, whether it gave up).");
  module.def("metadata_of", metadata_of);
  module.def("is_wrapped_number", [](const py::handle& value) {
    return THPVariable_Unpack(value.ptr()).unsafeGetTensorImpl()->is_wrapped_number();
  });
}

} // namespace gradc
