// The last step of a backward, for leaves that nothing watches: the segment hands them their gradients itself.
//
// The engine would send each through its queue, which takes longer than a small layer's own backward does. A leaf qualifies if the
// only way to its AccumulateGrad is one edge of this node, so that no other gradient could have been added first, and if no hook
// sees what arrives. The engine follows what edges it finds, so those to such leaves are away until the backward pass is over,
// another segment runs in this thread, or another pass begins inside this one.
#pragma once

#include <torch/csrc/autograd/function.h>

namespace gradc {

// Called by `node` with the gradients that it is about to return to the engine: what went to a leaf is undefined afterwards. The
// node must own something that this run freed, so that no other pass can be under way behind it. Does nothing where any of the
// node's leaves has hooks, or where it would not pay.
void accumulate_unwatched(torch::autograd::Node& node, torch::autograd::variable_list& grads);

// Whether all that `node` leads to are leaves that qualify, but that several of its edges may lead to one.
bool leads_to_unwatched_leaves(const torch::autograd::Node& node);

// Gives such leaves their gradients where the engine does not run, after the engine's own checks.
void give_to_leaves(torch::autograd::Node& node, torch::autograd::variable_list grads);

// Whether nothing would see the gradient of such a leaf arrive: it has no hooks, and nor has its node, where something holds one.
bool is_unwatched_leaf(const at::Tensor& tensor);

// Gives an unwatched leaf its gradient where the engine does not run, without a node where nothing holds one.
void give_to_leaf(const at::Tensor& leaf, at::Tensor grad);

// Puts the edges back that this thread hides. To be called before a backward pass begins inside another, and before a segment runs.
void show_hidden_edges();

} // namespace gradc
