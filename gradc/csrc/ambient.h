// The ambient state: the settings of torch, besides the inputs, on which the bits of a backward depend.
//
//     Ambient::read -> numbers, a part of every key           unsupported_mode -> why no Program can serve just now
//
// The C++ side of gradc/ambient.py, with the same fields in the same order. See SEMANTICS: the state that counts for backward is
// the one in force when backward runs.
#pragma once

#include <ATen/Context.h>

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace pybind11 {
class dict;
class module_;
}

namespace gradc {

struct Ambient {
  // All that torch has autocast for (_AUTOCAST_SUPPORTED_DEVICES): a backend of somebody's own comes to a process at any time.
  static constexpr std::array<at::DeviceType, 10> devices = {at::kCPU, at::kCUDA, at::kMTIA, at::kMAIA, at::kXPU,
                                                             at::kIPU, at::kHPU, at::kXLA, at::kPrivateUse1, at::kMPS};
  static constexpr size_t num_modes = 5;
  using Autocast = std::array<int64_t, devices.size()>; // the dtype by device type, -1 where autocast is off
  using Modes = std::array<int64_t, num_modes>;

  Autocast autocast{};
  bool is_deterministic = false;
  std::pair<at::Float32Precision, at::Float32Precision> matmul_precision; // CUDA's, and oneDNN's
  bool is_mkldnn_enabled = true;
  at::ScalarType default_dtype = at::kFloat;
  bool is_layout_enforced = true; // whether a leaf's first gradient gets the leaf's strides

  // The present state of this thread.
  static Ambient read();
  // The state whose numbers these are.
  static Ambient of(const Autocast& autocast, const Modes& modes);
  // The fields after autocast, which a region's setting may fix, as numbers.
  Modes modes() const;
};

// Autocast by the names of device types, as AutocastState.enabled in gradc/ambient.py.
using AutocastByName = std::vector<std::pair<std::string, at::ScalarType>>;
Ambient::Autocast autocast_of(const AutocastByName& enabled);

// The fields of gradc.ambient.Ambient.
pybind11::dict to_python(const Ambient& ambient);

// Names and values of the fields, to be read by people: in the words of gradc.backward.key.
std::vector<std::pair<std::string, std::string>> in_words(const Ambient& ambient);

// Why ops must reach the dispatcher one by one just now, as eager sends them; "" if they need not. As in gradc/ambient.py.
std::string_view unsupported_mode();

// Whether somebody has replaced kernels of ATen's, for tensors on the CPU: gradc.torch_private.replaced_kernels tells.
bool are_kernels_replaced();

void bind_ambient(pybind11::module_& module);

} // namespace gradc
