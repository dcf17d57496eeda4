// The devices that code of gradc's own works on, and what may be done there: a row for each. Everything elsewhere is torch's.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/DeviceType.h>
#include <c10/core/DispatchKey.h>

namespace gradc {

// `backend`: the bit of its dispatch keys. `is_synchronous`: a call is over when it returns, so that no stream or event comes with what it
// made. `is_on_host`: code of the host reads and writes its memory. `is_captured`: whole backward passes are.
struct KnownDevice {
  c10::DeviceType type;
  c10::BackendComponent backend;
  bool is_synchronous = false, is_on_host = false, is_captured = false;
};

inline constexpr KnownDevice known_devices[] = {
    {c10::DeviceType::CPU, c10::BackendComponent::CPUBit, true, true, true},
};

// Null for a device without a row.
constexpr const KnownDevice* find_device(c10::DeviceType type) {
  for (const KnownDevice& device : known_devices) {
    if (device.type == type) {
      return &device;
    }
  }
  return nullptr;
}

// What the row of a tensor's device says; false without a row, and of an undefined tensor.
inline bool is_on(const at::Tensor& tensor, bool KnownDevice::*what) {
  const KnownDevice* known = tensor.defined() ? find_device(tensor.device().type()) : nullptr;
  return known && known->*what;
}

} // namespace gradc
