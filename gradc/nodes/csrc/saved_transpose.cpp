#include "nodes/csrc/saved_transpose.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/t.h>
#include <torch/csrc/autograd/anomaly_mode.h>

#include <string>

namespace gradc {

namespace {

// The words of SavedVariable::unpack in torch's saved_variable.cpp. There the transpose has become a view that is made anew.
std::string error_text(const at::Tensor& tensor, bool has_history, uint32_t version, uint32_t saved_version) {
  const char* const hint = torch::autograd::AnomalyMode::is_enabled()
      ? "the backtrace further above shows the operation that failed to compute its gradient. The variable in question was changed in "
        "there or anywhere later. Good luck!"
      : "enable anomaly detection to find the operation that failed to compute its gradient, with "
        "torch.autograd.set_detect_anomaly(True, check_nan=False).";
  return c10::str(
      "one of the variables needed for gradient computation has been modified by an inplace operation: [", tensor.toString(), " ",
      tensor.sizes(), "]", has_history ? ", which is output 0 of AsStrided," : "", " is at version ", version, "; expected version ",
      saved_version, " instead. Hint: ", hint);
}

} // namespace

SavedTranspose::SavedTranspose(const at::Tensor& matrix, bool has_history)
    : storage_(matrix.storage()),
      keys_(matrix.key_set()),
      dtype_(matrix.dtype()),
      sizes_{matrix.size(1), matrix.size(0)},
      strides_{matrix.stride(1), matrix.stride(0)},
      offset_(matrix.storage_offset()),
      version_(torch::autograd::impl::version_counter(matrix)),
      saved_version_(version_.current_version()),
      has_history_(has_history) {}

at::Tensor SavedTranspose::unpack() const {
  at::Tensor tensor = at::detail::make_tensor<c10::TensorImpl>(c10::TensorImpl::VIEW, c10::Storage(storage_), keys_, dtype_);
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(sizes_, strides_, offset_);
  const auto version = version_.current_version();
  TORCH_CHECK(version == saved_version_, error_text(tensor, has_history_, version, saved_version_));
  return tensor;
}

void SavedTranspose::share_version(const at::Tensor& tensor) const {
  torch::autograd::impl::set_version_counter(tensor, version_);
}

void refuse_other_version(const at::Tensor& tensor, bool has_history, uint32_t saved_version) {
  const auto version = torch::autograd::impl::version_counter(tensor).current_version();
  TORCH_CHECK(version == saved_version, error_text(tensor, has_history, version, saved_version));
}

at::Tensor transpose_below_autograd(const at::Tensor& matrix) {
  const at::AutoDispatchBelowADInplaceOrView below;
  at::Tensor transposed = at::t(matrix);
  torch::autograd::impl::set_version_counter(transposed, torch::autograd::impl::version_counter(matrix));
  return transposed;
}

} // namespace gradc
