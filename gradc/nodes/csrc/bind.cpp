// What Python asks of live nodes: about hooks, casts and histories.
#include "nodes/csrc/bind.h"

#include "csrc/convert.h"
#include "csrc/plain.h"
#include "csrc/torch_internals.h"
#include "nodes/csrc/accumulate.h"
#include "nodes/csrc/autocast_cache.h"
#include "nodes/csrc/expand.h"
#include "nodes/csrc/hooks.h"
#include "nodes/csrc/run_segments.h"
#include "nodes/csrc/segment_node.h"
#include "nodes/csrc/thread_counts.h"

#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_cpp_function.h>
#include <torch/csrc/autograd/python_variable.h>

#include <mutex>

namespace py = pybind11;

namespace gradc {
namespace {

py::object written_into_view(const py::object& node) {
  return py::reinterpret_steal<py::object>(torch::autograd::functionToPyObject(node_in_copy_slices(node.ptr())));
}

// In eager the engine's buffers are its own; a segment under create_graph takes sums out of them, which shadow mode has to know.
py::object sum_so_far(const py::object& node, size_t position) {
  TORCH_CHECK_TYPE(torch::autograd::THPCppFunction_Check(node.ptr()), "expected a node of C++");
  const auto edge = reinterpret_cast<torch::autograd::THPCppFunction*>(node.ptr())->cdata->next_edge(position);
  at::Tensor sum;
  {
    const py::gil_scoped_release no_gil; // who holds the mutex may wait for the GIL
    auto& task = current_graph_task();
    const std::lock_guard lock(task.mutex_);
    if (const auto found = task.not_ready_.find(edge.function.get()); found != task.not_ready_.end()) {
      sum = found->second.buffer[edge.input_nr];
    }
  }
  return to_python(sum);
}

bool consists_of_segments_only(const py::sequence& roots) {
  std::vector<at::Tensor> tensors;
  for (const auto& root : roots) {
    if (!THPVariable_Check(root.ptr())) { // an edge of the graph
      return false;
    }
    tensors.push_back(THPVariable_Unpack(root.ptr()));
  }
  return consists_of_segments(tensors);
}

torch::autograd::variable_list tensors_among(const py::sequence& values) {
  torch::autograd::variable_list tensors;
  for (const auto& value : values) {
    if (THPVariable_Check(value.ptr())) {
      tensors.push_back(THPVariable_Unpack(value.ptr()));
    }
  }
  return tensors;
}

} // namespace

void bind_nodes(py::module_& module) {
  module.def("cached_cast", torch::wrap_pybind_function(cached_cast), "(leaf, dtype) -> autocast's copy of it");
  module.def(
      "has_gradient_hooks",
      [](const py::sequence& primals) { return has_gradient_hooks(to_ivalues(primals)); },
      "(primals) -> whether something runs when the gradient of one of the leaves arrives");
  module.def(
      "node_in_copy_slices",
      torch::wrap_pybind_function(written_into_view),
      "(CopySlices) -> the node of the op that wrote into a view");
  module.def(
      "consists_of_segments",
      torch::wrap_pybind_function(consists_of_segments_only),
      "(roots) -> whether a backward pass from there meets segments and leaves only");
  module.def(
      "backward_at_once",
      backward_at_once,
      py::arg("is_left_to_torch"),
      "((whether a pass comes to segments alone) -> whether nobody is to see it) -> what runs torch.autograd.backward, or returns False");
  module.def(
      "is_plain",
      [](const at::Tensor& tensor) { return is_plain(tensor); },
      "(tensor) -> whether a Program may take it for what its memory holds");
  module.def(
      "sum_so_far",
      torch::wrap_pybind_function(sum_so_far),
      "(node, position) -> what the running pass has got so far for where that edge leads");
  module.def(
      "expand_segments",
      torch::wrap_pybind_function([](const py::sequence& roots, const py::sequence& inputs, bool creates_graph) {
        expand_segments(tensors_among(roots), tensors_among(inputs), creates_graph);
      }),
      "(roots, inputs, create_graph) -> None; see expand.h");
  module.def(
      "call_elsewhere", torch::wrap_pybind_function(call_elsewhere), "(function) -> None; calls it in a thread whose nodes nobody counts");
  module.def(
      "move_on",
      torch::wrap_pybind_function([](const py::sequence& roots, uint64_t number) { move_on(tensors_among(roots), number); }),
      "(roots, number) -> None; the nodes behind have sequence numbers so much higher from now on");
  module.def("count_nodes_to", count_nodes_to, "(number) -> None; no node that this thread makes from now on has a lower sequence number");
  module.def("tell_of_counting_passes", tell_of_counting_passes, "(function) -> None; told the number of each pass of count_in_thread_of");
  module.def(
      "count_in_thread_of",
      torch::wrap_pybind_function(count_in_thread_of),
      "(device, number) -> the number of the next node of the device's thread, which counts so many more first");
  module.def("show_hidden_edges", show_hidden_edges, "() -> None; see accumulate.h");
}

} // namespace gradc
