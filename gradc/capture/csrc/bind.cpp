#include "capture/csrc/bind.h"

#include "capture/csrc/engine_run.h"
#include "capture/csrc/holders.h"
#include "capture/csrc/run_node.h"
#include "csrc/convert.h"

#include <pybind11/stl.h>
#include <torch/csrc/autograd/python_cpp_function.h>

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
  void pause() override {
    call("pause");
  }
  void boundary(uint32_t node, const Traffic& traffic) override {
    const py::gil_scoped_acquire gil;
    const auto& [inputs, outputs, are_inputs_stealable, are_inputs_kept, are_outputs_stealable] = traffic;
    const auto taken = to_python(inputs), returned = to_python(outputs);
    call("boundary", node, taken, returned, are_inputs_stealable, are_inputs_kept, are_outputs_stealable);
  }
  void depends_on_holders(const at::Tensor& value) override {
    const py::gil_scoped_acquire gil;
    call("depends_on_holders", value);
  }
  void snapshot(Snapshot<at::Tensor> state) override {
    const py::gil_scoped_acquire gil;
    call("snapshot", state.newly_done, to_python(state.not_ready), to_python(state.ready), to_python(state.results));
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
      EngineRun live(walk, &observer);
      known = live.run();
      return live.as_returned(known);
    });
  }
  return py::make_tuple(to_python(known), to_python(results));
}

// Runs the walked graph's formulas on stand-ins, telling `target`. The graph keeps what it saved.
py::list trace(Walk& walk, const py::object& target, const py::list& tensors, const py::list& numbers, const py::dict& boundaries) {
  StandIns stand_ins;
  stand_ins.tensors = to_tensors(tensors);
  for (const py::handle number : numbers) {
    stand_ins.numbers.push_back(number.cast<c10::SymInt>());
  }
  for (const auto& [node, returned] : boundaries) {
    const auto [outputs, are_stealable] = returned.cast<std::pair<py::list, std::vector<bool>>>();
    stand_ins.boundaries.emplace(node.cast<uint32_t>(), StandIns::Returned{to_tensors(outputs), are_stealable});
  }
  PythonObserver observer(target);
  variable_list results;
  {
    const py::gil_scoped_release no_gil;
    results = inside_engine(walk, [&] { return EngineRun(walk, &observer, &stand_ins).run(); });
  }
  return to_python(results);
}

// Holders as the tests see it: `waiting` is set by hand.
struct TestedHolders {
  std::vector<variable_list> waiting;
  Holders holders;

  explicit TestedHolders(const py::list& walked) : holders(to_tensors(walked), [this] {
    std::vector<const variable_list*> lists;
    for (const auto& list : waiting) {
      lists.push_back(&list);
    }
    return lists;
  }) {}
  TestedHolders(const TestedHolders&) = delete;
  TestedHolders& operator=(const TestedHolders&) = delete;

  void set_waiting(const py::list& lists) {
    waiting.clear();
    for (const py::handle list : lists) {
      waiting.push_back(to_tensors(list));
    }
  }

  // Runs `node` as EngineRun runs a boundary: [input or None] -> [output or None].
  py::list run(const py::list& values, const py::object& node) {
    const variable_list inputs = to_tensors(values);
    auto given = inputs;
    const auto before = Holders::count(inputs);
    const auto are_stealable = holders.stealable_among(inputs);
    auto outputs = to_tensors(node(to_python(given)));
    given.clear();
    holders.note_taken(inputs, Holders::kept_among(inputs, before, outputs));
    return to_python(holders.note_returned(inputs, are_stealable, std::move(outputs)));
  }
};

void bind_holders(py::module_& module) {
  using Self = TestedHolders;
  py::class_<Self>(module, "Holders", "Who holds the values of a recorded run; for tests.")
      .def(py::init<const py::list&>())
      .def("set_waiting", &Self::set_waiting)
      .def("run", &Self::run)
      .def("is_held_once", [](const Self& self, const at::Tensor& tensor) { return self.holders.is_held_once(tensor); })
      .def("is_from_boundary", [](const Self& self, const at::Tensor& tensor) { return self.holders.is_from_boundary(tensor); })
      .def("stealable_among", [](const Self& self, const py::list& inputs) {
        return self.holders.stealable_among(to_tensors(inputs));
      })
      .def("may_add_in_place", [](const Self& self, const at::Tensor& tensor, const at::Tensor& other) {
        return self.holders.may_add_in_place(tensor, other);
      })
      .def("is_added_to_this_time", [](const Self& self, const at::Tensor& tensor, const at::Tensor& other) {
        return self.holders.is_added_to_this_time(tensor, other);
      })
      .def("as_returned", [](const Self& self, const py::list& results) {
        return to_python(self.holders.as_returned(to_tensors(results)));
      });
}

} // namespace

void bind_capture(py::module_& module) {
  bind_holders(module);
  module.def(
      "current_autograd_node",
      [] {
        const auto node = current_node();
        return node ? py::reinterpret_steal<py::object>(torch::autograd::functionToPyObject(node)) : py::none();
      },
      "The node that runs in this thread, of a captured pass too; None outside of a pass.");
  module.def("capture", torch::wrap_pybind_function(capture), "Run a walked graph live, telling an observer.");
  module.def("trace", torch::wrap_pybind_function(trace), "Run a walked graph's formulas on stand-ins, telling an observer.");
}

} // namespace gradc
