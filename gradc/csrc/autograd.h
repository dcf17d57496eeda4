// Questions about nodes, gradients and tensors that torch's engine answers for itself: who hooks in, what it takes, where it writes.
//
//     has_hooks(node)          is_taken_as_is(grad, metadata)          may_write_over(tensor)          -> bool
//     version_of(tensor) -> number          new_handle(tensor) -> tensor
//
// Each as the engine decides it (engine.cpp, input_buffer.cpp and accumulate_grad.h in torch's csrc/autograd).
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/function.h>

namespace gradc {

// True if a hook of any kind would see what arrives at `node`, or what it makes of it.
bool has_hooks(torch::autograd::Node& node);

// Whether the engine would take `grad` as it is: it casts, sums and refuses what does not match.
bool is_taken_as_is(const at::Tensor& grad, const torch::autograd::InputMetadata& metadata);

// True if nobody holds the tensor or its memory but `num_refs` references in C++ and the tensor's own Python object: the engine
// then adds to it in place (can_accumulate_inplace in torch's input_buffer.cpp, which asks for a usual layout, too).
bool may_write_over(const at::Tensor& tensor, size_t num_refs = 1);

// The version counter, which views share; a tensor of inference mode has none: 0, and nothing is set.
uint32_t version_of(const at::Tensor& tensor);
void set_version(const at::Tensor& tensor, uint32_t version);

// Another tensor on the same memory, without history. What is written into either shows in the version counter of both.
at::Tensor new_handle(const at::Tensor& tensor);

} // namespace gradc
