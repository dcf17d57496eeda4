#include "nodes/csrc/packing.h"

#include "csrc/plain.h"

#include <ATen/SavedTensorHooks.h>
#include <torch/csrc/PyInterpreter.h>
#include <torch/csrc/utils/pybind.h>

namespace gradc {

PackedBy packed_by() {
  const auto hooks = at::SavedTensorDefaultHooks::get_hooks();
  if (!hooks) {
    return PackedBy::nobody;
  }
  const pybind11::handle pack(hooks->first.ptr(getPyInterpreter()));
  const pybind11::object module = pybind11::getattr(pack, "__module__", pybind11::none());
  const bool is_text = PyUnicode_Check(module.ptr());
  const bool is_checkpoints = is_text && PyUnicode_CompareWithASCIIString(module.ptr(), "torch.utils.checkpoint") == 0;
  return is_checkpoints ? PackedBy::checkpoint : PackedBy::user;
}

bool PackedLayout::is_of(const at::Tensor& tensor) const {
  return tensor.defined() && is_plain(tensor) && tensor.scalar_type() == dtype_ && tensor.device() == device_ &&
      tensor.sizes() == at::IntArrayRef(sizes_) && tensor.strides() == at::IntArrayRef(strides_);
}

} // namespace gradc
