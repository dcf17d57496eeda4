#include "nodes/csrc/thread_counts.h"

#include "nodes/csrc/segment_node.h"

#include <ATen/DeviceAccelerator.h>
#include <ATen/SequenceNumber.h>
#include <ATen/ThreadLocalState.h>
#include <ATen/ops/empty.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>

#include <algorithm>
#include <exception>
#include <map>
#include <mutex>
#include <thread>
#include <typeinfo>
#include <unordered_set>
#include <utility>

namespace py = pybind11;

namespace gradc {

using torch::autograd::Node;
using torch::autograd::variable_list;

namespace {

constexpr uint64_t little = 4096;

struct Count {
  uint64_t known = 0; // at least that
  uint64_t owed = 0;
};

// Counts nodes of the thread that runs it. It is none that anybody counts.
class CountNode : public Node {
 public:
  explicit CountNode(uint64_t number) : Node(/*sequence_nr=*/0), number_(number) {}
  variable_list apply(variable_list&& /*grads*/) override {
    count_nodes_to(at::sequence_number::peek() + number_);
    now_ = at::sequence_number::peek();
    pass_ = torch::autograd::get_current_graph_task_id();
    return {};
  }
  int pass() const {
    return pass_;
  }
  uint64_t now() const {
    return now_;
  }

 private:
  const uint64_t number_;
  uint64_t now_ = 0;
  int pass_ = -1;
};

std::mutex mutex_of_counts;
std::map<c10::DeviceIndex, Count> counts; // of the accelerator's

py::object& own_pass() {
  static auto& found = *new py::object(); // never destroyed: Python may be gone by then
  return found;
}

uint64_t known_of(c10::Device device) {
  const std::lock_guard lock(mutex_of_counts);
  return counts[device.index()].known;
}

// What the thread of the device has counted, once it has what it owes.
uint64_t ask_now(c10::Device device) {
  uint64_t owed = 0;
  {
    const std::lock_guard lock(mutex_of_counts);
    owed = std::exchange(counts[device.index()].owed, 0);
  }
  const auto now = count_in_thread_of(device, owed);
  const std::lock_guard lock(mutex_of_counts);
  return counts[device.index()].known = std::max(counts[device.index()].known, now);
}

} // namespace

NodesOfPass nodes_from(const variable_list& roots) {
  NodesOfPass nodes;
  std::unordered_set<const Node*> seen;
  const auto meet = [&](const c10::intrusive_ptr<Node>& node) {
    if (node && typeid(*node) != typeid(torch::autograd::AccumulateGrad) && seen.insert(node.get()).second) {
      nodes.push_back(node);
    }
  };
  for (const auto& root : roots) {
    meet(root.defined() ? root.grad_fn() : nullptr);
  }
  for (size_t i = 0; i < nodes.size(); ++i) {
    const auto node = nodes[i];
    if (const auto* segment = dynamic_cast<const SegmentNode*>(node.get()); segment && segment->is_expanded()) {
      std::for_each(segment->parts().begin(), segment->parts().end(), meet);
    }
    for (const auto& edge : node->next_edges()) {
      meet(edge.function);
    }
  }
  return nodes;
}

void call_elsewhere(const py::function& function) {
  const at::ThreadLocalState state;
  std::optional<c10::Stream> stream;
  if (const auto accelerator = at::getAccelerator()) {
    const c10::impl::VirtualGuardImpl devices(*accelerator);
    stream = devices.getStream(devices.getDevice());
  }
  std::exception_ptr error;
  {
    const py::gil_scoped_release no_gil;
    std::thread([&] {
      const at::ThreadLocalStateGuard same(state);
      if (stream) {
        const c10::impl::VirtualGuardImpl devices(stream->device_type());
        devices.setDevice(stream->device());
        devices.exchangeStream(*stream);
      }
      const py::gil_scoped_acquire gil;
      try {
        function();
      } catch (py::error_already_set& raised) {
        python_error kept;
        raised.restore();
        kept.persist();
        error = std::make_exception_ptr(std::move(kept));
      }
    }).join();
  }
  if (error) {
    std::rethrow_exception(error);
  }
}

void move_on(const variable_list& roots, uint64_t number) {
  for (const auto& node : nodes_from(roots)) {
    node->set_sequence_nr(node->sequence_nr() + number);
  }
}

void count_nodes_to(uint64_t number) {
  while (at::sequence_number::peek() < number) {
    at::sequence_number::get_and_increment();
  }
}

uint64_t count_in_thread_of(c10::Device device, uint64_t number) {
  const auto node = c10::make_intrusive<CountNode>(number);
  {
    const py::gil_scoped_release no_gil;
    const c10::impl::ExcludeDispatchKeyGuard no_modes(c10::DispatchKeySet({c10::DispatchKey::Python, c10::DispatchKey::PythonTLSSnapshot}));
    const at::Tensor one = at::empty({}, at::TensorOptions(at::kFloat).device(device));
    node->add_input_metadata(one);
    torch::autograd::Engine::get_default_engine().execute(
        {torch::autograd::Edge(node, 0)}, {one}, /*keep_graph=*/false, /*create_graph=*/false, /*accumulate_grad=*/true);
  }
  own_pass()(node->pass());
  return node->now();
}

bool device_counts_from(c10::Device device, uint64_t number) {
  return number <= known_of(device) || number <= ask_now(device);
}

void owe_nodes(c10::Device device, uint64_t number) {
  bool is_due = false;
  {
    const std::lock_guard lock(mutex_of_counts);
    auto& count = counts[device.index()];
    count.owed += number;
    const uint64_t here = at::sequence_number::peek();
    const uint64_t room = count.known - std::min(count.known, here);
    is_due = room < little || room < count.owed;
  }
  if (is_due) {
    ask_now(device);
  }
}

void tell_of_counting_passes(py::function own) {
  own_pass() = std::move(own);
}

} // namespace gradc
