#include "capture/csrc/run_node.h"

#include "csrc/autograd.h"
#include "csrc/torch_internals.h"
#include "nodes/csrc/segment_node.h"

#include <ATen/EmptyTensor.h>
#include <torch/csrc/autograd/engine.h>

#include <memory>
#include <utility>

namespace gradc {

using torch::autograd::GraphTask;

namespace {

variable_list call_post_hooks(Node& node, variable_list outputs, const variable_list& inputs) {
  for (const auto& hook : node.post_hooks()) {
    outputs = (*hook)(outputs, inputs);
  }
  return outputs;
}

// As call_tensor_pre_hooks in torch's engine.cpp.
variable_list call_tensor_pre_hooks(Node& node, variable_list inputs) {
  for (const auto& hook : node.tensor_pre_hooks()) {
    inputs = (*hook)(inputs);
  }
  for (const auto& pair : node.retains_grad_hooks()) {
    inputs = (*pair.second)(inputs);
  }
  return inputs;
}

// One autograd node whose body is ours.
struct Body : Node {
  explicit Body(std::function<variable_list()> function) : function_(std::move(function)) {
    add_input_metadata(token());
  }
  // Never read. Made past the dispatcher, which under a mode would run Python: that waits for the GIL, while a thread that holds it
  // may wait for this static to be made.
  static const at::Tensor& token() {
    static const at::Tensor token = at::detail::empty_cpu({}, at::kFloat);
    return token;
  }
  variable_list apply(variable_list&& /*inputs*/) override {
    results = function_();
    return {};
  }
  std::string name() const override {
    return "gradc::CompiledAutograd";
  }
  variable_list results;

 private:
  std::function<variable_list()> function_;
};

thread_local Node* running = nullptr;

// While it lives, `running` is the node.
struct Running {
  explicit Running(Node& node) : before(std::exchange(running, &node)) {}
  ~Running() {
    running = before;
  }
  Running(const Running&) = delete;
  Running& operator=(const Running&) = delete;
  Node* before;
};

} // namespace

// A pass inside the node, if torch's engine runs it, has nodes of its own.
c10::intrusive_ptr<Node> current_node() {
  auto node = torch::autograd::get_current_node();
  if (running && dynamic_cast<Body*>(node.get())) {
    return c10::intrusive_ptr<Node>::reclaim_copy(running);
  }
  return node;
}

variable_list call_hooks_alone(Node& node, variable_list inputs) {
  const Running running_here(node);
  return call_tensor_pre_hooks(node, std::move(inputs));
}

// As call_function in torch's engine.cpp.
variable_list run_node(Node& node, variable_list inputs, bool keep_graph, std::vector<bool> is_owned) {
  const Running is_running(node);
  auto* segment = dynamic_cast<SegmentNode*>(&node);
  const variable_list given = segment && !is_owned.empty() ? inputs : variable_list();
  inputs = call_tensor_pre_hooks(node, std::move(inputs));
  for (const auto& hook : node.pre_hooks()) {
    inputs = (*hook)(inputs);
  }
  for (size_t i = 0; i < given.size(); ++i) {
    if (!inputs[i].is_same(given[i])) {
      is_owned[i] = may_write_over(inputs[i]);
    }
  }
  const WalkedRun walked(segment, std::move(is_owned));
  if (!keep_graph) {
    node.will_release_variables();
  }
  const bool has_post_hooks = !node.post_hooks().empty();
  variable_list outputs;
  if (has_post_hooks) {
    variable_list copy = inputs;
    outputs = node(std::move(copy));
  } else {
    outputs = node(std::move(inputs));
  }
  torch::autograd::validate_outputs(node.next_edges(), outputs, [&](const std::string& message) {
    return "Function " + node.name() + " returned an " + message;
  });
  if (has_post_hooks) {
    return call_post_hooks(node, std::move(outputs), inputs);
  }
  return outputs;
}

variable_list inside_engine(Walk& walk, const std::function<variable_list()>& function) {
  const auto filled = [&]() {
    // The nodes ask the graph task which gradients are needed, and hooks whether a node will run.
    auto& task = current_graph_task();
    for (const auto& live : walk.nodes) {
      task.nodes_in_graph_.insert(live.node.get());
      if (walk.request.is_partial && live.is_run()) {
        auto& info = task.exec_info_[live.node.get()];
        info.needed_ = live.is_needed;
        if (!live.captures.empty()) {
          info.captures_ = std::make_unique<std::vector<GraphTask::ExecInfo::Capture>>();
        }
      }
    }
    const at::AutoGradMode grad_mode(walk.request.create_graph); // the engine's own would warn of leaves, which no such pass has
    return function();
  };
  const auto body = c10::make_intrusive<Body>(filled);
  // A reentrant checkpoint asks whether the pass is for all leaves: one that is for the body alone is not.
  const torch::autograd::edge_list asked_for = walk.request.is_partial ? edge_list{Edge(body, 0)} : edge_list{};
  torch::autograd::Engine::get_default_engine().execute(
      {Edge(body, 0)}, {Body::token()}, walk.request.keep_graph, false, true, asked_for);
  return std::move(body->results);
}

} // namespace gradc
