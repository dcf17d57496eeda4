// Who packs what a node saves: nobody, torch.utils.checkpoint, or hooks of the user's (torch.autograd.graph.saved_tensors_hooks).
//
// A checkpoint only drops what is saved, and when any of it is asked for computes all of it again. So a backward may ask for everything
// before it begins; what hooks of the user's packed is asked for one by one, where eager's nodes run.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>
#include <c10/util/DimVector.h>

namespace gradc {

enum class PackedBy { nobody, checkpoint, user };

// In this thread, at present.
PackedBy packed_by();

// How a tensor lies in memory, but for where: what is computed again may come by another way.
class PackedLayout {
 public:
  PackedLayout() = default;
  explicit PackedLayout(const at::Tensor& tensor)
      : sizes_(tensor.sizes()), strides_(tensor.strides()), dtype_(tensor.scalar_type()), device_(tensor.device()) {}
  // Whether the tensor is a plain one (plain.h) that lies so.
  bool is_of(const at::Tensor& tensor) const;

 private:
  c10::DimVector sizes_, strides_;
  c10::ScalarType dtype_ = c10::ScalarType::Undefined;
  c10::Device device_ = c10::Device(c10::DeviceType::CPU);
};

} // namespace gradc
