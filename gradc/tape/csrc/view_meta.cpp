#include "tape/csrc/view_meta.h"

#include "csrc/torch_internals.h"

#include <torch/csrc/autograd/VariableTypeUtils.h>
#include <torch/csrc/autograd/variable.h>

namespace gradc {
namespace {

torch::autograd::DifferentiableViewMeta* view_meta(const at::Tensor& view) {
  auto* meta = torch::autograd::impl::get_view_autograd_meta(view);
  return meta && meta->has_bw_view() ? meta : nullptr;
}

} // namespace

void forget_view_function(const at::Tensor& view) {
  if (auto* meta = view_meta(view)) {
    auto& info = backward_view(*meta);
    info.view_fn_ = nullptr;
    info.rev_view_fn_ = nullptr;
  }
}

bool is_view_outdated(const at::Tensor& view) {
  const auto* meta = view_meta(view);
  return meta && meta->get_attr_version() != static_cast<uint32_t>(view._version());
}

void outdate_view(const at::Tensor& view) {
  if (auto* meta = view_meta(view)) {
    meta->set_attr_version(static_cast<uint32_t>(view._version()) - 1);
  }
}

void forget_history(const at::Tensor& tensor) {
  torch::autograd::impl::set_gradient_edge(tensor, {});
}

at::Tensor as_view_of(const at::Tensor& base, const at::Tensor& tensor) {
  namespace impl = torch::autograd::impl;
  impl::set_version_counter(base, impl::version_counter(tensor));
  auto view = torch::autograd::as_view(base, tensor.variable_data(), true, true);
  impl::set_gradient_edge(view, impl::gradient_edge(tensor));
  return view;
}

} // namespace gradc
