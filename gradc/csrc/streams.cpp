#include "csrc/streams.h"

#include <ATen/DeviceAccelerator.h>
#include <c10/core/impl/VirtualGuardImpl.h>

namespace gradc {

c10::Stream current_stream(c10::Device device) {
  return c10::impl::VirtualGuardImpl(device.type()).getStream(device);
}

bool is_captured(c10::Device device) {
  return c10::impl::VirtualGuardImpl(device.type()).isStreamCapturing(current_stream(device));
}

bool is_ordered(const at::Tensor& tensor) {
  return tensor.defined() && (tensor.is_cpu() || tensor.device().type() == at::getAccelerator());
}

bool runs_here(const torch::autograd::Node& node) {
  const auto& metadata = node.input_metadata(0);
  return metadata.device().is_cpu() || metadata.stream() == current_stream(metadata.device());
}

} // namespace gradc
