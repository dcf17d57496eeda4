#include "nodes/csrc/run_segments.h"

#include "csrc/ambient.h"
#include "csrc/listening.h"
#include "csrc/plain.h"
#include "nodes/csrc/segment_node.h"

#include <ATen/ops/ones_like.h>
#include <pybind11/pybind11.h>
#include <pthread.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/python_variable.h>

#include <atomic>

namespace gradc {
namespace {

// torch's Python makes the engine anew in a process that was forked off: that is left to it. Forks are watched from the start.
std::atomic<bool> forked = false;
const bool is_watched_for_forks = pthread_atfork(nullptr, nullptr, [] { forked = true; }) == 0;

bool is_forked() {
  return forked || !is_watched_for_forks;
}

bool is_usual_root(const at::Tensor& root) {
  return is_plain(root) && root.is_cpu() && root.numel() == 1 && root.is_floating_point() && root.requires_grad() && !root.is_leaf();
}

} // namespace

bool may_begin_without_python() {
  return torch::autograd::get_current_graph_task_id() == -1 && unsupported_mode().empty() && !is_anybody_listening() && !is_forked();
}

bool backward_of_segments(PyObject* root) {
  if (!THPVariable_CheckExact(root) || !is_usual_root(THPVariable_Unpack(root)) || !may_begin_without_python()) {
    return false;
  }
  const at::Tensor tensor = THPVariable_Unpack(root);
  const auto edge = torch::autograd::impl::gradient_edge(tensor);
  auto* segment = dynamic_cast<SegmentNode*>(edge.function.get());
  if (!segment) {
    return false;
  }
  const at::Tensor one = at::ones_like(tensor, {}, at::MemoryFormat::Preserve);
  const pybind11::gil_scoped_release no_gil;
  if (segment->run_alone(edge.input_nr, one)) {
    return true;
  }
  if (!consists_of_segments({tensor})) {
    return false;
  }
  torch::autograd::Engine::get_default_engine().execute(
      {edge}, {one}, /*keep_graph=*/false, /*create_graph=*/false, /*accumulate_grad=*/true);
  return true;
}

} // namespace gradc
