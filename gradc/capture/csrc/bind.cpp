#include "capture/csrc/bind.h"

#include "capture/csrc/engine_run.h"
#include "capture/csrc/run_node.h"
#include "csrc/convert.h"

#include <pybind11/stl.h>

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
  for (const auto& [node, outputs] : boundaries) {
    stand_ins.boundaries.emplace(node.cast<uint32_t>(), to_tensors(outputs));
  }
  PythonObserver observer(target);
  variable_list results;
  {
    const py::gil_scoped_release no_gil;
    results = inside_engine(walk, [&] { return EngineRun(walk, &observer, &stand_ins).run(); });
  }
  return to_python(results);
}

} // namespace

void bind_capture(py::module_& module) {
  module.def("capture", torch::wrap_pybind_function(capture), "Run a walked graph live, telling an observer.");
  module.def("trace", torch::wrap_pybind_function(trace), "Run a walked graph's formulas on stand-ins, telling an observer.");
}

} // namespace gradc
