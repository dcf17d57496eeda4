#include "csrc/ambient.h"

#include "csrc/plain.h"

#include <ATen/autocast_mode.h>
#include <c10/core/AutogradState.h>
#include <c10/core/DefaultDtype.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>
#include <pybind11/stl.h>
#include <torch/csrc/Dtype.h>
#include <torch/csrc/DynamicTypes.h>
#include <torch/csrc/autograd/anomaly_mode.h>
#include <torch/csrc/utils/pybind.h>

#include <algorithm>
#include <atomic>
#include <map>

namespace gradc {

namespace py = pybind11;

namespace {

// As torch.get_float32_matmul_precision has it, but that it raises where the two were set by other names.
std::string name_of(const std::pair<at::Float32Precision, at::Float32Precision>& precision) {
  using at::Float32Precision;
  const auto is_full = [](Float32Precision one) { return one != Float32Precision::TF32 && one != Float32Precision::BF16; };
  const auto [cuda, onednn] = precision;
  if (is_full(cuda) && is_full(onednn)) {
    return "highest";
  }
  if (cuda == Float32Precision::TF32 && !is_full(onednn)) {
    return onednn == Float32Precision::TF32 ? "high" : "medium";
  }
  return "cuda " + at::precision2str(cuda) + ", mkldnn " + at::precision2str(onednn);
}

py::object dtype_of(at::ScalarType type) {
  return py::reinterpret_borrow<py::object>(reinterpret_cast<PyObject*>(torch::getTHPDtype(type)));
}

std::string device_name(size_t position) {
  return c10::DeviceTypeName(Ambient::devices[position], /*lower_case=*/true);
}

// As AutocastState.enabled in gradc/ambient.py: the enabled device types with their dtypes, sorted.
std::map<std::string, at::ScalarType> enabled_in(const Ambient::Autocast& autocast) {
  std::map<std::string, at::ScalarType> enabled;
  for (size_t i = 0; i < autocast.size(); ++i) {
    if (autocast[i] >= 0) {
      enabled.emplace(device_name(i), static_cast<at::ScalarType>(autocast[i]));
    }
  }
  return enabled;
}

py::tuple to_python(const std::map<std::string, at::ScalarType>& enabled) {
  py::list pairs;
  for (const auto& [device, dtype] : enabled) {
    pairs.append(py::make_tuple(device, dtype_of(dtype)));
  }
  return py::tuple(pairs);
}

// Nearly always: one look, where each device type would take one.
bool is_autocast_off() {
  return (c10::autocast_dispatch_keyset - c10::impl::tls_local_dispatch_key_set().excluded_).empty();
}

std::atomic<bool> has_replaced_kernels = false;

std::string name_of(at::ScalarType type) {
  return std::string("torch.") + torch::getTHPDtype(type)->name;
}

} // namespace

py::dict to_python(const Ambient& ambient) {
  py::dict fields;
  fields["autocast"] = to_python(enabled_in(ambient.autocast));
  fields["is_deterministic"] = ambient.is_deterministic;
  fields["matmul_precision"] = name_of(ambient.matmul_precision);
  fields["is_mkldnn_enabled"] = ambient.is_mkldnn_enabled;
  fields["default_dtype"] = dtype_of(ambient.default_dtype);
  fields["is_layout_enforced"] = ambient.is_layout_enforced;
  return fields;
}

Ambient::Autocast autocast_of(const AutocastByName& enabled) {
  Ambient::Autocast autocast;
  autocast.fill(-1);
  for (const auto& [name, dtype] : enabled) {
    const auto found = std::find(Ambient::devices.begin(), Ambient::devices.end(), at::Device(name).type());
    TORCH_CHECK_VALUE(found != Ambient::devices.end(), "autocast of a device type that no key tells: ", name);
    autocast[found - Ambient::devices.begin()] = static_cast<int64_t>(dtype);
  }
  return autocast;
}

Ambient Ambient::read() {
  const auto& context = at::globalContext();
  Ambient ambient;
  ambient.autocast.fill(-1);
  for (size_t i = 0; i < devices.size() && !is_autocast_off(); ++i) {
    const bool is_enabled = at::autocast::is_autocast_enabled(devices[i]);
    ambient.autocast[i] = is_enabled ? static_cast<int64_t>(at::autocast::get_autocast_dtype(devices[i])) : -1;
  }
  ambient.is_deterministic = context.deterministicAlgorithms();
  const auto precision = [&](at::Float32Backend backend) { return context.float32Precision(backend, at::Float32Op::MATMUL); };
  ambient.matmul_precision = {precision(at::Float32Backend::CUDA), precision(at::Float32Backend::MKLDNN)};
  ambient.is_mkldnn_enabled = context.userEnabledMkldnn();
  ambient.default_dtype = c10::get_default_dtype_as_scalartype();
  ambient.is_layout_enforced = c10::AutogradState::get_tls_state().get_grad_layout_enforcement_enabled();
  return ambient;
}

Ambient::Modes Ambient::modes() const {
  const auto precision = static_cast<int64_t>(matmul_precision.first) << 8 | static_cast<int64_t>(matmul_precision.second);
  return {is_deterministic, precision, is_mkldnn_enabled, static_cast<int64_t>(default_dtype),
          is_layout_enforced};
}

// By position, as `modes` puts them.
Ambient Ambient::of(const Autocast& autocast, const Modes& modes) {
  Ambient ambient;
  ambient.autocast = autocast;
  ambient.is_deterministic = modes[0] != 0;
  ambient.matmul_precision = {static_cast<at::Float32Precision>(modes[1] >> 8), static_cast<at::Float32Precision>(modes[1] & 255)};
  ambient.is_mkldnn_enabled = modes[2] != 0;
  ambient.default_dtype = static_cast<at::ScalarType>(modes[3]);
  ambient.is_layout_enforced = modes[4] != 0;
  return ambient;
}

std::vector<std::pair<std::string, std::string>> in_words(const Ambient& ambient) {
  const auto yes_or_no = [](bool is_true) { return is_true ? "yes" : "no"; };
  std::string autocast;
  for (const auto& [device, dtype] : enabled_in(ambient.autocast)) {
    autocast += (autocast.empty() ? "" : " ") + device + " " + name_of(dtype);
  }
  return {{"autocast", autocast.empty() ? "off" : autocast},
          {"is_deterministic", yes_or_no(ambient.is_deterministic)},
          {"matmul_precision", name_of(ambient.matmul_precision)},
          {"is_mkldnn_enabled", yes_or_no(ambient.is_mkldnn_enabled)},
          {"default_dtype", name_of(ambient.default_dtype)},
          {"is_layout_enforced", yes_or_no(ambient.is_layout_enforced)}};
}

bool are_kernels_replaced() {
  return has_replaced_kernels.load(std::memory_order_relaxed);
}

std::string_view unsupported_mode() {
  if (c10::impl::tls_is_dispatch_key_included(c10::DispatchKey::FuncTorchDynamicLayerFrontMode)) { // while its stack has a layer
    return "function transform";
  }
  if (c10::impl::TorchDispatchModeTLS::any_modes_set()) {
    return "dispatch mode";
  }
  if (is_in_forward_mode()) {
    return "forward-mode AD";
  }
  if (torch::autograd::AnomalyMode::is_enabled()) {
    return "anomaly mode";
  }
  if (are_kernels_replaced()) {
    return "replaced kernels";
  }
  const bool is_below_autograd = c10::impl::tls_is_dispatch_key_excluded(c10::DispatchKey::AutogradFunctionality);
  return is_below_autograd && !c10::InferenceMode::is_enabled() ? "kernel of an op" : "";
}

void bind_ambient(py::module_& module) {
  module.def("ambient", [] { return to_python(Ambient::read()); }, "The ambient state, as the fields of gradc.ambient.Ambient.");
  module.def(
      "tell_of_replaced_kernels", [](bool are_replaced) { has_replaced_kernels = are_replaced; },
      "(whether somebody has replaced kernels of ATen's) -> None");
  module.def("unsupported_mode", unsupported_mode, "As gradc.ambient.unsupported_mode.");
}

} // namespace gradc
