#include "nodes/csrc/hooks.h"

#include "csrc/torch_internals.h"

#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/variable.h>

#include <atomic>
#include <mutex>
#include <optional>
#include <utility>

namespace gradc {

using torch::autograd::variable_list;

namespace {

// The wrapper of ours around a hook, put where the hook stands if it is not there yet.
template <typename Wrapper, typename... Arguments>
Wrapper& wrap(std::unique_ptr<torch::autograd::FunctionPreHook>& hook, const Arguments&... arguments) {
  using Hook = torch::autograd::FunctionPreHook;
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  if (auto* wrapper = dynamic_cast<Wrapper*>(hook.get())) {
    return *wrapper;
  }
  auto* wrapper = new Wrapper(std::unique_ptr<Hook>(hook.get()), arguments...);
  put_around(hook, wrapper);
  return *wrapper;
}

// A hook of an output. In eager the output's node does not run if gradients come in for what was saved before it only.
class OutputHook : public torch::autograd::FunctionPreHook {
 public:
  OutputHook(std::unique_ptr<FunctionPreHook> hook, const SegmentNode& node)
      : hook_(std::move(hook)), node_(node), output_(output_of(*hook_)) {}

  variable_list operator()(const variable_list& grads) override {
    const bool is_passed = output_ && node_.is_entered_inside() && !grads.at(*output_).defined();
    return is_passed ? grads : (*hook_)(grads);
  }

  void compiled_args(torch::dynamo::autograd::CompiledNodeArgs& args) const override {
    hook_->compiled_args(args);
  }

 private:
  std::unique_ptr<FunctionPreHook> hook_;
  const SegmentNode& node_;
  std::optional<size_t> output_;
};

// A hook of a leaf. In eager nothing leads to the leaf from the values that were saved before it was used.
class LeafHook : public torch::autograd::FunctionPreHook {
 public:
  explicit LeafHook(std::unique_ptr<FunctionPreHook> hook)
      : hook_(std::move(hook)) {}

  variable_list operator()(const variable_list& grads) override {
    const bool is_passed = unreached_in_ == torch::autograd::get_current_graph_task_id() && !grads.at(0).defined();
    return is_passed ? grads : (*hook_)(grads);
  }

  void compiled_args(torch::dynamo::autograd::CompiledNodeArgs& args) const override {
    hook_->compiled_args(args);
  }

  // In this backward pass the hook is not called for the want of a gradient.
  void pass_over() {
    unreached_in_ = torch::autograd::get_current_graph_task_id();
  }

 private:
  std::unique_ptr<FunctionPreHook> hook_;
  std::atomic<int> unreached_in_{-1};
};

} // namespace

void wrap_output_hooks(std::vector<std::unique_ptr<torch::autograd::FunctionPreHook>>& hooks, const SegmentNode& node) {
  for (auto& hook : hooks) {
    wrap<OutputHook>(hook, node);
  }
}

void pass_over_hooks_of_unreached_leaves(const SegmentNode& node, const variable_list& grads) {
  for (size_t i = 0; i < grads.size(); ++i) {
    auto* leaf = dynamic_cast<torch::autograd::AccumulateGrad*>(node.next_edge(i).function.get());
    if (grads[i].defined() || !leaf) {
      continue;
    }
    for (auto& hook : leaf->tensor_pre_hooks()) {
      wrap<LeafHook>(hook).pass_over();
    }
  }
}

bool has_gradient_hooks(const std::vector<c10::IValue>& primals) {
  for (const auto& primal : primals) {
    if (!primal.isTensor() || !primal.toTensor().requires_grad() || !primal.toTensor().is_leaf()) {
      continue;
    }
    const auto& tensor = primal.toTensor();
    if (!torch::autograd::impl::hooks(tensor).empty() || torch::autograd::impl::post_acc_grad_hooks(tensor)) {
      return true;
    }
    const auto accumulator = torch::autograd::impl::try_get_grad_accumulator(tensor);
    if (accumulator && (!accumulator->post_hooks().empty() || !accumulator->pre_hooks().empty())) {
      return true;
    }
  }
  return false;
}

} // namespace gradc
