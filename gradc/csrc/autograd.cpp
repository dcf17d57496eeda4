#include "csrc/autograd.h"

#include <torch/csrc/autograd/variable.h>

namespace gradc {

bool has_hooks(torch::autograd::Node& node) {
  return !node.tensor_pre_hooks().empty() || !node.pre_hooks().empty() || !node.post_hooks().empty() ||
      !node.retains_grad_hooks().empty() || node.tensor_post_acc_grad_hooks() != nullptr;
}

bool is_taken_as_is(const at::Tensor& grad, const torch::autograd::InputMetadata& metadata) {
  return grad.layout() == at::kStrided && metadata.layout() == at::kStrided && !metadata.is_tensor_subclass() &&
      !metadata.is_nested_tensor() && metadata.grad_dtype() == grad.scalar_type() &&
      metadata.device() == grad.device() && metadata.is_same_shape(grad);
}

bool may_write_over(const at::Tensor& tensor, size_t num_refs) {
  return tensor.defined() && torch::autograd::impl::is_tensor_stealable(tensor, num_refs) && tensor.has_storage() &&
      tensor.storage().use_count() == 1;
}

uint32_t version_of(const at::Tensor& tensor) {
  return tensor.is_inference() ? 0 : tensor.unsafeGetTensorImpl()->version_counter().current_version();
}

void set_version(const at::Tensor& tensor, uint32_t version) {
  if (!tensor.is_inference()) {
    auto counter = torch::autograd::impl::version_counter(tensor);
    counter.set_version(version);
  }
}

at::Tensor new_handle(const at::Tensor& tensor) {
  at::Tensor handle = tensor.variable_data();
  if (!tensor.is_inference()) {
    torch::autograd::impl::set_version_counter(handle, torch::autograd::impl::version_counter(tensor));
  }
  return handle;
}

} // namespace gradc
