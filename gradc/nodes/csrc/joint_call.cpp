#include "nodes/csrc/joint_call.h"

#include "csrc/plain.h"
#include "executor/csrc/memory.h"
#include "nodes/csrc/accumulate.h"
#include "nodes/csrc/call_region.h"
#include "nodes/csrc/saved_transpose.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/ones_like.h>

#include <algorithm>
#include <utility>

namespace gradc {

using torch::autograd::variable_list;

namespace {

thread_local std::optional<JointCall> waiting_here;

uint32_t version_of(const at::Tensor& tensor) {
  return tensor.is_inference() ? 0 : torch::autograd::impl::version_counter(tensor).current_version();
}

// The gradient of a loss.
at::Tensor one_for(const at::Tensor& loss) {
  const auto dtype = loss.scalar_type();
  if (loss.dim() != 0 || (dtype != at::kFloat && dtype != at::kDouble)) {
    return at::ones_like(loss, {}, at::MemoryFormat::Preserve);
  }
  at::Tensor one = new_memory({dtype, {}, {}, 0});
  void* place = one.mutable_data_ptr();
  dtype == at::kFloat ? void(*static_cast<float*>(place) = 1) : void(*static_cast<double*>(place) = 1);
  return one;
}

} // namespace

bool JointCall::may_be(const RegionLayout& region, size_t loss) {
  if (region.segments.size() != 1 || !region.live_order.empty() || !region.symbols.empty() || !region.made.empty()) {
    return false;
  }
  const auto& segment = region.segments.front();
  const auto is_loss = [loss](const EntryLayout& entry) { return entry.value == static_cast<int64_t>(loss) && entry.shape.empty(); };
  const auto leads_to_primal = [](const ExitLayout& exit) { return exit.primal >= 0; };
  return segment.num_tangents == 1 && is_loss(segment.entries.front()) && !segment.has_spoilt &&
      std::all_of(segment.exits.begin(), segment.exits.end(), leads_to_primal);
}

JointCall::JointCall(
    std::shared_ptr<const RegionLayout> region, std::vector<c10::IValue> primals, std::vector<c10::IValue> values, size_t loss)
    : region_(std::move(region)), primals_(std::move(primals)), values_(std::move(values)), loss_(loss) {
  versions_.reserve(layout().saved.size());
  for (const auto& source : layout().saved) {
    versions_.push_back(source.is_primal ? version_of(primals_[source.position].toTensor()) : 0);
  }
}

bool JointCall::run() {
  if (!is_plain(loss()) || !loss().is_cpu() || !loss().is_floating_point() || !leads_to_unwatched_leaves()) {
    return false;
  }
  const at::NoGradGuard no_grad;
  const at::Tensor one = one_for(loss());
  const std::vector<bool> needed(layout().exits.size(), true);
  Key key = make_key(region_->forced_autocast, {one}, layout().entries.size(), needed);
  const auto found = region_->backwards.front().find(complete(std::move(key), !layout().shared.empty(), {}));
  if (!found.backward || found.backward->plan->has_foreign_steps || adds_to_one_leaf_twice(*found.backward->plan)) {
    return false;
  }
  auto inputs = inputs_of(*found.backward, one);
  values_.clear(); // what backward has read for the last time dies while it runs
  auto grads = gradients_of(gradc::run(*found.backward->plan, std::move(inputs)), *found.backward);
  for (size_t i = 0; i < grads.size(); ++i) {
    if (grads[i].defined()) {
      give_to_leaf(leaf(layout().exits[i]), std::move(grads[i]));
    }
  }
  return true;
}

void JointCall::hang() const {
  hang_on_nodes(region_, primals_, values_, {});
}

bool JointCall::leads_to_unwatched_leaves() const {
  const auto& exits = layout().exits;
  return std::all_of(exits.begin(), exits.end(), [this](const ExitLayout& exit) { return is_unwatched_leaf(leaf(exit)); });
}

// Whether two gradients of one leaf would be added to a third. The engine adds them up before.
bool JointCall::adds_to_one_leaf_twice(const Plan& plan) const {
  std::vector<const c10::TensorImpl*> met;
  for (size_t i = 0; i < layout().exits.size(); ++i) {
    const auto& target = leaf(layout().exits[i]);
    if (target.grad().defined() && !plan.is_constant(plan.outputs[i], &c10::IValue::isNone)) {
      met.push_back(target.unsafeGetTensorImpl());
    }
  }
  std::sort(met.begin(), met.end());
  return std::adjacent_find(met.begin(), met.end()) != met.end();
}

std::vector<c10::IValue> JointCall::inputs_of(const CompiledBackward& backward, at::Tensor tangent) const {
  std::vector<c10::IValue> inputs;
  inputs.reserve(1 + backward.saved.size());
  inputs.emplace_back(std::move(tangent));
  for (const auto position : backward.saved) {
    inputs.emplace_back(saved(position));
  }
  for (const auto position : backward.unread) {
    saved(position);
  }
  return inputs;
}

at::Tensor JointCall::saved(size_t position) const {
  const auto& source = layout().saved[position];
  const at::Tensor& tensor = (source.is_primal ? primals_ : values_)[source.position].toTensor();
  if (source.is_primal && !source.is_kept && !tensor.is_inference()) {
    refuse_other_version(tensor, /*has_history=*/source.entry >= 0, versions_[position]);
  }
  return source.is_transposed ? SavedTranspose(tensor, /*has_history=*/source.entry >= 0).unpack() : tensor;
}

void JointCall::wait(JointCall call) {
  waiting_here = std::move(call);
}

std::optional<JointCall> JointCall::take() {
  return std::exchange(waiting_here, std::nullopt);
}

} // namespace gradc
