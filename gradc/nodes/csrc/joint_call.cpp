#include "nodes/csrc/joint_call.h"

#include "csrc/autograd.h"
#include "csrc/plain.h"
#include "csrc/streams.h"
#include "executor/cpu/csrc/memory.h"
#include "nodes/csrc/accumulate.h"
#include "nodes/csrc/call_region.h"
#include "nodes/csrc/saved_transpose.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/ones.h>
#include <c10/util/SmallVector.h>

#include <algorithm>
#include <iterator>
#include <utility>

namespace gradc {

using torch::autograd::variable_list;

namespace {

constexpr size_t calls_apart = 2; // until it pays to join forward and backward

thread_local std::optional<ForwardBackwardCall> waiting_here;

uint32_t version_of_primal(const c10::IValue& primal) {
  return primal.isTensor() ? version_of(primal.toTensor()) : 0;
}

// Ones on devices, where making one takes a kernel: each serves all losses of this thread on one stream.
class Ones {
 public:
  at::Tensor get(const at::TensorOptions& options) {
    const auto stream = current_stream(options.device());
    if (is_captured(options.device())) {
      return at::ones({}, options);
    }
    const auto known = std::find_if(ones_.begin(), ones_.end(), [&](const auto& one) {
      return one.first == stream && one.second.dtype() == options.dtype();
    });
    return known != ones_.end() ? known->second : ones_.emplace_back(stream, at::ones({}, options)).second;
  }
  // What a gradient lies on is its own from now on.
  void forget(const std::vector<c10::IValue>& gradients) {
    std::erase_if(ones_, [&](const auto& one) {
      return std::any_of(gradients.begin(), gradients.end(), [&](const c10::IValue& gradient) {
        return gradient.isTensor() && gradient.toTensor().defined() && gradient.toTensor().is_alias_of(one.second);
      });
    });
  }

 private:
  std::vector<std::pair<c10::Stream, at::Tensor>> ones_;
};

thread_local Ones ones_here;

// The gradient of a loss.
at::Tensor one_for(const at::TensorOptions& options) {
  if (!options.device().is_cpu()) {
    return ones_here.get(options);
  }
  const auto dtype = c10::typeMetaToScalarType(options.dtype());
  if (dtype != at::kFloat && dtype != at::kDouble) {
    return at::ones({}, options);
  }
  at::Tensor one = new_memory({dtype, {}, {}, 0});
  void* place = one.mutable_data_ptr();
  dtype == at::kFloat ? void(*static_cast<float*>(place) = 1) : void(*static_cast<double*>(place) = 1);
  return one;
}

} // namespace

bool ForwardBackwardCall::may_be(const RegionLayout& region, size_t loss) {
  if (region.segments.size() != 1 || !region.live_order.empty() || !region.symbols.empty() || !region.made.empty()) {
    return false;
  }
  const auto& segment = region.segments.front();
  const auto is_loss = [loss](const EntryLayout& entry) { return entry.value == static_cast<int64_t>(loss) && entry.shape.empty(); };
  const auto leads_to_primal = [](const ExitLayout& exit) { return exit.primal >= 0; };
  return segment.num_tangents == 1 && is_loss(segment.entries.front()) && !segment.has_spoilt &&
      std::all_of(segment.exits.begin(), segment.exits.end(), leads_to_primal);
}

ForwardBackwardCall::ForwardBackwardCall(std::shared_ptr<const RegionLayout> region, std::vector<c10::IValue> primals, size_t loss, uint64_t start)
    : region_(std::move(region)),
      primals_(std::move(primals)),
      loss_(loss),
      start_(start),
      stream_(current_stream(region_->segments.front().entries.front().options.device())),
      joined_(region_->joining.joined) {
  const pybind11::gil_scoped_release no_gil;
  if (!joined_ || !run_joined()) {
    joined_ = nullptr;
    values_ = gradc::run(*region_->forward, primals_);
  }
  versions_.reserve(primals_.size());
  std::transform(primals_.begin(), primals_.end(), std::back_inserter(versions_), &version_of_primal);
}

// False, and nothing has happened, where forward and backward have to run one by one; also where one of them raises.
bool ForwardBackwardCall::run_joined() {
  const at::NoGradGuard no_grad;
  at::Tensor one = one_for(layout().entries.front().options);
  key_ = key_for(one);
  if (!leads_to_unwatched_leaves() || backward_for(key_) != joined_->backward) {
    return false;
  }
  auto inputs = primals_;
  inputs.emplace_back(std::move(one));
  try {
    values_ = gradc::run(*joined_->plan, std::move(inputs));
  } catch (const std::exception&) {
    has_failed_ = true;
    return false;
  }
  const auto first = values_.end() - static_cast<std::ptrdiff_t>(layout().exits.size());
  gradients_.assign(std::make_move_iterator(first), std::make_move_iterator(values_.end()));
  values_.erase(first, values_.end());
  ones_here.forget(gradients_);
  return true;
}

bool ForwardBackwardCall::run() {
  const at::Tensor loss = this->loss();
  if (!is_plain(loss) || !is_ordered(loss) || !loss.is_floating_point() || current_stream(loss.device()) != stream_ ||
      !leads_to_unwatched_leaves()) {
    return false;
  }
  const at::NoGradGuard no_grad;
  at::Tensor one = one_for(loss.options());
  Key key = key_for(one);
  if (joined_ && key != key_) {
    return false;
  }
  const auto backward = joined_ ? joined_->backward : backward_for(key);
  if (!backward) {
    return false;
  }
  check_versions(*backward);
  if (!joined_) {
    auto inputs = inputs_of(*backward, std::move(one));
    values_.clear(); // what backward has read for the last time dies while it runs
    gradients_ = gradc::run(*backward->plan, std::move(inputs));
    ones_here.forget(gradients_);
  }
  auto grads = gradients_of(std::move(gradients_), *backward);
  for (size_t i = 0; i < grads.size(); ++i) {
    if (grads[i].defined()) {
      give_to_leaf(leaf(layout().exits[i]), std::move(grads[i]));
    }
  }
  loss.unsafeGetTensorImpl()->set_requires_grad(true); // as one with a history: functions behind the step are guarded by it
  return true;
}

void ForwardBackwardCall::join() const {
  Joining& joining = region_->joining;
  if (has_failed_) { // though both have run
    joining.joined = nullptr;
  }
  if (joining.is_settled || ++joining.num_calls < calls_apart) {
    return;
  }
  joining.is_settled = true;
  const at::Tensor one = one_for(layout().entries.front().options);
  const auto backward = backward_for(key_for(one));
  if (auto plan = backward ? region_->derive->join(0, {one}, all_needed(), !layout().shared.empty()) : nullptr) {
    joining.joined = std::make_shared<Joined>(Joined{std::move(plan), backward});
  }
}

void ForwardBackwardCall::hang() {
  make_values();
  hang_on_nodes(region_, primals_, values_, {}, start_);
}

// Those that backward would read, where it has run already, and in vain. It will be so again.
void ForwardBackwardCall::make_values() {
  if (!joined_) {
    return;
  }
  region_->joining.joined = nullptr;
  const bool are_same = std::equal(primals_.begin(), primals_.end(), versions_.begin(), [](const c10::IValue& primal, uint32_t version) {
    return version_of_primal(primal) == version;
  });
  TORCH_CHECK(
      are_same, "gradc: ", region_->name, ": while the loss was on its way to backward(), somebody wrote into a tensor that it was ",
      "made of, and the way there needs what was made before. Write into tensors of a step from its own thread, or run this step ",
      "eagerly");
  auto values = run_forward(*region_, primals_);
  std::move(values.begin() + static_cast<std::ptrdiff_t>(values_.size()), values.end(), std::back_inserter(values_));
  joined_ = nullptr;
}

// Of a backward by the loss's gradient.
Key ForwardBackwardCall::key_for(const at::Tensor& tangent) const {
  Key key = make_key(region_->forced_autocast, {tangent}, layout().entries.size(), all_needed());
  return complete(std::move(key), !layout().shared.empty(), {});
}

// What such a backward runs; null where it has not been compiled, runs code of others, or is for the engine.
std::shared_ptr<const CompiledBackward> ForwardBackwardCall::backward_for(const Key& key) const {
  const auto found = region_->backwards.front().find(key);
  const bool may_run = found.backward && !found.backward->plan->has_foreign_steps && !leaves_sums_to_the_engine(*found.backward->plan);
  return may_run ? found.backward : nullptr;
}

bool ForwardBackwardCall::leads_to_unwatched_leaves() const {
  const auto& exits = layout().exits;
  return std::all_of(exits.begin(), exits.end(), [this](const ExitLayout& exit) { return is_unwatched_leaf(leaf(exit)); });
}

// Whether a leaf gets several gradients. The engine adds them up before the leaf sees any: their sum may be laid out as none of them.
bool ForwardBackwardCall::leaves_sums_to_the_engine(const Plan& plan) const {
  c10::SmallVector<const c10::TensorImpl*, 64> met;
  for (size_t i = 0; i < layout().exits.size(); ++i) {
    if (!plan.is_constant(plan.outputs[i], &c10::IValue::isNone)) {
      met.push_back(leaf(layout().exits[i]).unsafeGetTensorImpl());
    }
  }
  std::sort(met.begin(), met.end());
  return std::adjacent_find(met.begin(), met.end()) != met.end();
}

std::vector<c10::IValue> ForwardBackwardCall::inputs_of(const CompiledBackward& backward, at::Tensor tangent) const {
  std::vector<c10::IValue> inputs;
  inputs.reserve(1 + backward.saved.size());
  inputs.emplace_back(std::move(tangent));
  for (const auto position : backward.saved) {
    inputs.emplace_back(saved(position));
  }
  return inputs;
}

void ForwardBackwardCall::check_versions(const CompiledBackward& backward) const {
  std::for_each(backward.saved.begin(), backward.saved.end(), [this](auto position) { check_version(position); });
  std::for_each(backward.unread.begin(), backward.unread.end(), [this](auto position) { check_version(position); });
}

void ForwardBackwardCall::check_version(size_t position) const {
  const auto& source = layout().saved[position];
  if (source.is_primal && !source.is_kept && !primals_[source.position].toTensor().is_inference()) {
    refuse_other_version(primals_[source.position].toTensor(), /*has_history=*/source.entry >= 0, versions_[source.position]);
  }
}

at::Tensor ForwardBackwardCall::saved(size_t position) const {
  const auto& source = layout().saved[position];
  const at::Tensor& tensor = (source.is_primal ? primals_ : values_)[source.position].toTensor();
  return source.is_transposed ? SavedTranspose(tensor, /*has_history=*/source.entry >= 0).unpack() : tensor;
}

void ForwardBackwardCall::wait(ForwardBackwardCall call) {
  waiting_here = std::move(call);
}

std::optional<ForwardBackwardCall> ForwardBackwardCall::take() {
  return std::exchange(waiting_here, std::nullopt);
}

} // namespace gradc
