// Running a plan: the state that eager's kernels see, then one step after the other.
#include "csrc/plain.h"
#include "csrc/sizes.h"
#include "executor/core/csrc/below_autograd.h"
#include "executor/core/csrc/choice.h"
#include "executor/core/csrc/device_graphs.h"
#include "executor/core/csrc/devices.h"
#include "executor/core/csrc/kernels.h"
#include "executor/core/csrc/large_memory.h"
#include "executor/core/csrc/sized_plans.h"
#include "executor/core/csrc/versions.h"

#include <ATen/autocast_mode.h>
#include <ATen/record_function.h>

#include <algorithm>

namespace gradc {
namespace {

using c10::DispatchKey;
using c10::DispatchKeySet;

// All of the dispatcher, for an op that is not ATen's: what its kernel calls counts versions itself. No gradient is recorded,
// since the inputs' history is none of its business.
class AsInEager {
 public:
  explicit AsInEager(const Frame& frame) : dispatch_(keys(frame)) {}

 private:
  static c10::impl::LocalDispatchKeySet keys(const Frame& frame) {
    auto keys = frame.ambient;
    const auto now = c10::impl::tls_local_dispatch_key_set();
    keys.excluded_ = (keys.excluded_ - c10::autocast_dispatch_keyset) | (now.excluded_ & c10::autocast_dispatch_keyset);
    return keys;
  }
  at::AutoGradMode grad_mode_{false};
  c10::impl::ForceDispatchKeyGuard dispatch_;
};

// Puts each step under the autocast that its kernel saw when it was captured; in the end, the ambient one is back.
class AutocastSwitch {
 public:
  explicit AutocastSwitch(const AutocastState& state) {
    for (const auto& [device, dtype] : state) {
      ambient_.emplace_back(device, at::autocast::get_autocast_dtype(device));
      at::autocast::set_autocast_enabled(device, true);
      at::autocast::set_autocast_dtype(device, dtype);
    }
  }
  ~AutocastSwitch() {
    for (const auto& [device, dtype] : ambient_) {
      at::autocast::set_autocast_enabled(device, false);
      at::autocast::set_autocast_dtype(device, dtype);
    }
  }
  AutocastSwitch(const AutocastSwitch&) = delete;
  AutocastSwitch& operator=(const AutocastSwitch&) = delete;

 private:
  AutocastState ambient_;
};

// True if nothing in this thread wants to see the calls: no dispatch mode, function transform or profiler. Then an op on
// plain tensors may go to its device's kernel without asking the dispatcher.
bool is_unobserved() {
  return is_undispatched() && !at::hasCallbacks();
}

bool reads_plain(const Step& step, const Frame& frame) {
  for (const Index slot : step.reads) {
    if (!is_plain_on(frame.slots[slot], *step.device)) {
      return false;
    }
  }
  return true;
}

c10::IValue packed(const Pack& pack, const Frame& frame) {
  c10::impl::GenericList list(pack.element);
  list.reserve(pack.items.size());
  for (const Operand& item : pack.items) {
    list.push_back(frame[item]);
  }
  return list;
}

// The results of a call, flattened, into the slots that take them.
class Receiver {
 public:
  Receiver(const Step& step, Frame& frame) : step_(step), frame_(frame) {}

  void take(c10::IValue value) {
    if (value.isList()) {
      for (const c10::IValue& item : value.toListRef()) {
        take(item);
      }
      return;
    }
    TORCH_CHECK(next_ < step_.outs.size(), "gradc: ", step_.op.operator_name(), " returned more values than when captured");
    if (const Index slot = step_.outs[next_++]; slot >= 0) {
      frame_.slots[slot] = std::move(value);
    }
  }

  void finish() const {
    TORCH_CHECK(next_ == step_.outs.size(), "gradc: ", step_.op.operator_name(), " returned fewer values than when captured");
  }

 private:
  const Step& step_;
  Frame& frame_;
  size_t next_ = 0;
};

void call_boxed(const Step& step, Frame& frame) {
  frame.stack.clear();
  for (const Operand& operand : step.operands) {
    if (operand.kind == Operand::Kind::pack) {
      frame.stack.emplace_back(packed(frame.plan.packs[operand.index], frame));
    } else {
      frame.stack.emplace_back(frame[operand]);
    }
  }
  if (step.is_foreign && !frame.plan.is_dispatched) {
    const AsInEager dispatch(frame);
    step.op.callBoxed(frame.stack);
  } else {
    step.op.callBoxed(frame.stack);
  }
  Receiver receiver(step, frame);
  for (c10::IValue& value : frame.stack) {
    receiver.take(std::move(value));
  }
  frame.stack.clear();
  receiver.finish();
}

bool matches(const c10::IValue& value, const std::optional<Meta>& meta) {
  if (!meta || !value.isTensor()) {
    return !meta;
  }
  const at::Tensor& tensor = value.toTensor();
  return tensor.scalar_type() == meta->dtype && is_plain_on(value, meta->device.type()) &&
      tensor.device() == meta->device && are_equal(tensor.sizes(), meta->sizes) &&
      are_equal(tensor.strides(), meta->strides);
}

bool match(const std::vector<Index>& slots, const Frame& frame) {
  return std::all_of(slots.begin(), slots.end(), [&](Index slot) {
    return slot < 0 || matches(frame.slots[slot], frame.plan.metas[slot]);
  });
}

void call_generic(const Step& step, Frame& frame, bool by_kernel) {
  if (by_kernel) {
    step.kernel(step, frame);
  } else if (step.autocast.empty()) {
    call_boxed(step, frame);
  } else {
    const AutocastSwitch autocast(step.autocast);
    call_boxed(step, frame);
  }
  frame.is_exact = frame.is_exact && match(step.outs, frame);
}

void call(const Step& step, Frame& frame, bool unobserved) {
  const bool is_direct = unobserved && (step.kernel || step.exact.call) && reads_plain(step, frame);
  if (is_direct && frame.is_exact && step.exact.call) {
    step.exact.call(step, frame);
  } else {
    call_generic(step, frame, is_direct && step.kernel);
  }
}

void clear(const std::vector<Index>& slots, Frame& frame) {
  for (const Index slot : slots) {
    frame.slots[slot] = {};
  }
}

// How a slot's tensor lies; nothing is noted any more where that changes, or where it lies in no usual way.
void note_layout(Index slot, Frame& frame) {
  if (!frame.layouts || frame.layouts->empty() || slot < 0 || !frame.slots[slot].isTensor() || !frame.slots[slot].toTensor().defined()) {
    return;
  }
  Layouts& layouts = *frame.layouts;
  const at::Tensor& tensor = frame.slots[slot].toTensor();
  if (!has_plain_keys(tensor)) {
    layouts.clear();
    return;
  }
  Layout layout{tensor.sizes().vec(), tensor.strides().vec(), tensor.storage_offset()};
  if (!layouts[slot]) {
    layouts[slot] = std::move(layout);
  } else if (*layouts[slot] != layout) {
    layouts.clear();
  }
}

void note_layouts(const std::vector<Index>& slots, Frame& frame) {
  for (const Index slot : slots) {
    note_layout(slot, frame);
  }
}

void run_step(const Step& step, Frame& frame, bool unobserved) {
  call_step(step, frame, unobserved);
  note_layouts(step.outs, frame);
  note_layouts(step.writes, frame);
  clear(step.deaths, frame);
  if (!(unobserved && frame.is_exact)) {
    clear(step.kept, frame);
  }
  if (step.reuse >= 0) {
    frame.slots[step.reuse] = {};
  }
}

// The stretches of a plan that has run once as foreseen, by the step that each begins with; else none.
const Stretches* stretches_of(const Plan& plan) {
  if (!plan.has_run_as_foreseen.load(std::memory_order_acquire)) {
    return nullptr;
  }
  std::call_once(plan.found, [&] { plan.stretches = plan.device->find_stretches(plan); });
  return &plan.stretches;
}

void run_all(const Plan& plan, Frame& frame) {
  const bool unobserved = is_unobserved();
  const Stretches* stretches = unobserved && frame.is_exact && plan.device ? stretches_of(plan) : nullptr;
  for (size_t i = 0; i < plan.steps.size();) {
    const Stretch* stretch = stretches ? (*stretches)[i].get() : nullptr;
    if (stretch && frame.is_exact && plan.device->can_run(*stretch, frame)) {
      i = plan.device->run_stretch(*stretch, frame);
    } else {
      run_step(plan.steps[i++], frame, unobserved);
    }
  }
  if (!stretches && unobserved && frame.is_exact) {
    plan.has_run_as_foreseen.store(true, std::memory_order_release);
  }
}

} // namespace

void fill(Frame& frame, std::vector<c10::IValue> inputs) {
  const Plan& plan = frame.plan;
  TORCH_CHECK(
      inputs.size() == plan.inputs.size(), "gradc: ", plan.name, " takes ", plan.inputs.size(), " inputs, got ", inputs.size());
  if (plan.bindings) {
    frame.bound = plan.bindings->find_or_compute(read_symbols(plan.symbols, inputs));
  }
  for (size_t i = 0; i < inputs.size(); ++i) {
    frame.slots[plan.inputs[i]] = std::move(inputs[i]);
  }
  for (const auto& [slot, tensor] : plan.owned) {
    frame.slots[slot] = tensor;
    note_layout(slot, frame);
  }
  frame.is_exact = plan.is_static && match(plan.inputs, frame);
  frame.has_full_precision = !plan.device || plan.device->has_full_precision();
  note_layouts(plan.inputs, frame);
  for (const Index slot : plan.unread) {
    frame.slots[slot] = {};
  }
}

void call_step(const Step& step, Frame& frame, bool unobserved) {
  call(step, frame, unobserved);
  track_versions(step, frame);
}

void call_as_eager(const Step& step, Frame& frame) {
  call_generic(step, frame, step.kernel != nullptr);
}

std::vector<c10::IValue> run(const Plan& plan, std::vector<c10::IValue> inputs, std::vector<c10::IValue>* left) {
  if (plan.graphs) {
    return plan.graphs->run(plan, std::move(inputs), left);
  }
  return plan.choice ? plan.choice->run(plan, std::move(inputs), left) : run_steps(plan, std::move(inputs), left);
}

namespace {

std::vector<c10::IValue> run_frame(
    const Plan& plan, std::vector<c10::IValue> inputs, std::vector<c10::IValue>* left, Layouts* layouts = nullptr) {
  Frame frame(plan);
  frame.layouts = layouts;
  fill(frame, std::move(inputs));
  try {
    std::optional<BelowAutograd> below;
    if (!plan.is_dispatched) {
      below.emplace();
    }
    const at::AutoGradMode grad_mode(true);
    const NoAutocast autocast = no_autocast();
    const LargeMemory memory;
    run_all(plan, frame);
  } catch (const std::exception&) {
    if (left) {
      left->clear();
      for (const Index slot : plan.inputs) {
        left->push_back(std::move(frame.slots[slot]));
      }
    }
    throw;
  }
  std::vector<c10::IValue> outputs;
  outputs.reserve(plan.outputs.size());
  for (const Operand& output : plan.outputs) {
    outputs.push_back(frame[output]);
  }
  return outputs;
}

} // namespace

std::vector<c10::IValue> run_steps(const Plan& plan, std::vector<c10::IValue> inputs, std::vector<c10::IValue>* left) {
  if (!plan.sized || inputs.size() != plan.inputs.size()) {
    return run_frame(plan, std::move(inputs), left);
  }
  const Symbols symbols = read_symbols(plan.symbols, inputs);
  const auto [sized, is_to_be_noted] = plan.sized->find(symbols);
  if (sized) {
    return run_frame(*sized, std::move(inputs), left);
  }
  Layouts layouts(is_to_be_noted ? plan.metas.size() : 0);
  auto outputs = run_frame(plan, std::move(inputs), left, is_to_be_noted ? &layouts : nullptr);
  if (!layouts.empty()) {
    plan.sized->make(symbols, layouts);
  }
  return outputs;
}

} // namespace gradc
