// Hooks around a segment: on its outputs, and on the leaves that it leads to.
//
// A segment stands for many of eager's nodes, and runs where eager would have run only some of them. Hooks of the others are then
// passed over, by a wrapper that is put around each.
#pragma once

#include "nodes/csrc/segment_node.h"

#include <ATen/core/ivalue.h>
#include <torch/csrc/autograd/function_hook.h>

#include <memory>
#include <vector>

namespace gradc {

// Has the hooks of the outputs of `node` passed over in runs that eager's nodes of these outputs would not see.
void wrap_output_hooks(std::vector<std::unique_ptr<torch::autograd::FunctionPreHook>>& hooks, const SegmentNode& node);

// Has the hooks of leaves that `node` sends no gradient passed over in this backward pass.
void pass_over_hooks_of_unreached_leaves(const SegmentNode& node, const torch::autograd::variable_list& grads);

// True if something runs when the gradient of one of the leaves arrives: a hook of the tensor's, or one on its
// AccumulateGrad, as DDP's reducer has.
bool has_gradient_hooks(const std::vector<c10::IValue>& primals);

} // namespace gradc
