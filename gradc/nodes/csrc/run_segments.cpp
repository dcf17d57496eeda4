#include "nodes/csrc/run_segments.h"

#include "csrc/ambient.h"
#include "csrc/listening.h"
#include "csrc/plain.h"
#include "csrc/streams.h"
#include "nodes/csrc/segment_node.h"

#include <ATen/ops/ones_like.h>
#include <pthread.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/python_variable.h>

#include <atomic>

namespace py = pybind11;

namespace gradc {
namespace {

// torch's Python makes the engine anew in a process that was forked off: that is left to it. Forks are watched from the start.
std::atomic<bool> forked = false;
const bool is_watched_for_forks = pthread_atfork(nullptr, nullptr, [] { forked = true; }) == 0;

bool is_forked() {
  return forked || !is_watched_for_forks;
}

bool is_usual_root(const at::Tensor& root) {
  return is_plain(root) && is_ordered(root) && root.numel() == 1 && root.is_floating_point() && root.requires_grad() && !root.is_leaf();
}

} // namespace

bool may_begin_without_python() {
  return torch::autograd::get_current_graph_task_id() == -1 && unsupported_mode().empty() && !is_anybody_listening() && !is_forked();
}

namespace {

// The arguments of torch.autograd.backward, in its order.
enum Argument { tensors, grad_tensors, retain_graph, create_graph, grad_variables, inputs, num_arguments };

bool is_usual_call(PyObject* const* arguments, Py_ssize_t count) {
  if (count != num_arguments) {
    return false;
  }
  const bool frees_graph = (arguments[retain_graph] == Py_None || arguments[retain_graph] == Py_False) && arguments[create_graph] == Py_False;
  const bool says_more = arguments[grad_tensors] != Py_None || arguments[grad_variables] != Py_None || arguments[inputs] != Py_None;
  return frees_graph && !says_more && THPVariable_CheckExact(arguments[tensors]) && is_usual_root(THPVariable_Unpack(arguments[tensors]));
}

bool run_at_once(const at::Tensor& root, const py::handle& is_left_to_torch) {
  if (!leads_to_segments(root) || !may_begin_without_python() || !py::cast<bool>(is_left_to_torch(consists_of_segments({root})))) {
    return false;
  }
  const auto edge = torch::autograd::impl::gradient_edge(root);
  const at::Tensor one = at::ones_like(root, {}, at::MemoryFormat::Preserve);
  const py::gil_scoped_release no_gil;
  auto* segment = dynamic_cast<SegmentNode*>(edge.function.get());
  if (segment && segment->run_alone(edge.input_nr, one)) {
    return true;
  }
  if (!root.is_cpu()) {
    return false; // segments may have to be expanded first
  }
  torch::autograd::Engine::get_default_engine().execute(
      {edge}, {one}, /*keep_graph=*/false, /*create_graph=*/false, /*accumulate_grad=*/true);
  return true;
}

PyObject* call_at_once(PyObject* self, PyObject* const* arguments, Py_ssize_t count) {
  HANDLE_TH_ERRORS
  const bool is_run = is_usual_call(arguments, count) && run_at_once(at::Tensor(THPVariable_Unpack(arguments[tensors])), self);
  return PyBool_FromLong(is_run);
  END_HANDLE_TH_ERRORS
}

PyMethodDef at_once_method = {
    "gradc_backward_at_once",
    reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(&call_at_once)),
    METH_FASTCALL,
    nullptr};

} // namespace

py::object backward_at_once(py::function is_left_to_torch) {
  return py::reinterpret_steal<py::object>(PyCFunction_New(&at_once_method, is_left_to_torch.ptr()));
}

} // namespace gradc
