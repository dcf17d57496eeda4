#include "executor/core/csrc/devices.h"

#include "csrc/devices.h"
#include "executor/core/csrc/kernels.h"

namespace gradc {
namespace {

void make_views(const Step& step, Frame& frame) {
  for (const View& view : step.views) {
    if (view.is_same) {
      frame.slots[view.slot] = frame.slots[view.base];
      continue;
    }
    const at::Tensor& base = frame.slots[view.base].toTensor();
    const Meta& meta = *frame.plan.metas[view.slot];
    at::Tensor made = at::detail::make_tensor<c10::TensorImpl>(
        c10::TensorImpl::VIEW, c10::Storage(base.storage()), base.key_set(), base.dtype());
    made.unsafeGetTensorImpl()->set_sizes_and_strides(meta.sizes, meta.strides, base.storage_offset() + view.offset);
    frame.slots[view.slot] = std::move(made);
  }
}

} // namespace

KernelTable::KernelTable(const std::vector<std::vector<KernelRow>>& families) {
  for (const auto& family : families) {
    for (const KernelRow& row : family) {
      for (const std::string& op : row.ops) {
        by_op_[op].push_back(row.find);
      }
    }
  }
}

Exact KernelTable::find(const Plan& plan, const Step& step, const std::string& op) const {
  const auto found = by_op_.find(op);
  if (found == by_op_.end()) {
    return {};
  }
  for (const FindExact find : found->second) {
    if (Exact exact = find(plan, step); exact.call) {
      return exact;
    }
  }
  return {};
}

void choose_kernels(const Plan& plan, Step& step) {
  const DeviceKernels* kernels = step.device ? kernels_of(*step.device) : nullptr;
  if (!kernels || !step.autocast.empty()) {
    return;
  }
  const std::string op = name_of(step);
  step.keys = c10::DispatchKeySet(c10::DispatchKey::Dense) | c10::DispatchKeySet(find_device(*step.device)->backend);
  step.kernel = find_typed(op);
  step.exact = step.views.empty() ? kernels->exact().find(plan, step, op) : Exact{&make_views};
}

} // namespace gradc
