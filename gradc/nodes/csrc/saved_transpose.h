// The transpose of a matrix among the primals, as a node saves it: the matrix's memory, and how it is read.
//
// A linear layer saves that of its weight. As a tensor it would take longer to make, to save and to drop than a small layer's product.
// What holds of the tensor that eager saves, holds here: it is cut off from what is done to the matrix's own memory, sizes or strides
// afterwards, and shares the matrix's version.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/DispatchKeySet.h>
#include <c10/core/Storage.h>
#include <torch/csrc/autograd/variable.h>

#include <array>
#include <cstdint>

namespace gradc {

class SavedTranspose {
 public:
  SavedTranspose() = default;
  // Of a plain matrix (plain.h). `has_history`: whether gradients come in for it.
  SavedTranspose(const at::Tensor& matrix, bool has_history);
  bool defined() const {
    return static_cast<bool>(storage_);
  }
  // The tensor, without history. Throws torch's error if the matrix was written into since.
  at::Tensor unpack() const;
  // Without the matrix's memory, until it gets it back.
  void let_go() {
    storage_ = c10::Storage();
  }
  void take_back(const at::Tensor& unpacked) {
    storage_ = unpacked.storage();
  }
  // Gives the tensor the matrix's version.
  void share_version(const at::Tensor& tensor) const;

 private:
  c10::Storage storage_;
  c10::DispatchKeySet keys_;
  caffe2::TypeMeta dtype_;
  std::array<int64_t, 2> sizes_{};
  std::array<int64_t, 2> strides_{};
  int64_t offset_ = 0;
  c10::VariableVersion version_{c10::VariableVersion::DISABLED};
  uint32_t saved_version_ = 0;
  bool has_history_ = false;
};

// Throws torch's error if the tensor was written into since its version was the saved one.
void refuse_other_version(const at::Tensor& tensor, bool has_history, uint32_t saved_version);

// The same as a tensor of the matrix's version, where something is to see it.
at::Tensor transpose_below_autograd(const at::Tensor& matrix);

} // namespace gradc
