// Which tensors are plain: what lies in their memory is all that their numbers depend on, so that a kernel may be given the memory.
//
//     has_plain_keys(tensor)          is_plain(tensor)          is_plain_on(value, device)          is_in_forward_mode()          -> bool
//
// Read off the tensor's dispatch keys, by one list of those that a plain tensor may have. It names what is known, not what is
// strange: a key that a later torch adds makes a tensor that is not plain.
#pragma once

#include "csrc/devices.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <c10/core/DispatchKeySet.h>
#include <torch/csrc/autograd/forward_grad.h>

namespace gradc {

// Dense kernels, of any device; autograd; autocast. With any other key the numbers are not those in memory, or not only: they are
// behind a wrapper (Python, functorch, Functionalize), lazy (Conjugate, Negative, ZeroTensor), coded (Quantized), or elsewhere
// (Sparse, MkldnnCPU, NestedTensor).
constexpr c10::DispatchKeySet plain_keys =
    c10::DispatchKeySet({c10::DispatchKey::Dense, c10::DispatchKey::ADInplaceOrView, c10::DispatchKey::AutogradFunctionality}) |
    c10::autocast_dispatch_keyset;
constexpr c10::DispatchKeySet lazy_keys({c10::DispatchKey::Conjugate, c10::DispatchKey::Negative});

// Of a dispatch key with a backend, one bit says which; these may be any of `backends`.
inline bool has_only(c10::DispatchKeySet keys, c10::DispatchKeySet known, uint64_t backends = c10::full_backend_mask) {
  return (keys.raw_repr() & ~(known.raw_repr() | backends)) == 0;
}

// True if the tensor has no key but those of a plain one, and, where that is said, those of a lazy conjugate or negative.
inline bool has_plain_keys(const at::Tensor& tensor, bool may_be_lazy = false) {
  return has_only(tensor.key_set(), may_be_lazy ? plain_keys | lazy_keys : plain_keys);
}

// True inside of forward-mode AD, where tensors may have forward gradients.
inline bool is_in_forward_mode() {
  return torch::autograd::ForwardADLevel::try_get_by_idx(0) != nullptr;
}

// True if a Program may take the tensor for what its memory holds: the keys of a plain one, and no forward gradient beside it.
inline bool is_plain(const at::Tensor& tensor) {
  return has_plain_keys(tensor) && !tensor._fw_grad(0).defined();
}

// True if the value is a tensor that a kernel of gradc's for such a device takes as it is.
inline bool is_plain_on(const c10::IValue& value, c10::DeviceType type) {
  const KnownDevice* known = find_device(type);
  return known && value.isTensor() &&
      has_only(value.unsafeToTensorImpl()->key_set(), plain_keys | c10::DispatchKeySet(known->backend), 0);
}

inline bool is_plain_on_cpu(const c10::IValue& value) {
  return is_plain_on(value, c10::DeviceType::CPU);
}

} // namespace gradc
