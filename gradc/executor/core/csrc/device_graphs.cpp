#include "executor/core/csrc/device_graphs.h"

#include "csrc/plain.h"
#include "csrc/sizes.h"
#include "csrc/streams.h"
#include "executor/core/csrc/below_autograd.h"
#include "executor/core/csrc/device_graph.h"
#include "executor/core/csrc/devices.h"

#include <ATen/Context.h>
#include <ATen/record_function.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/hash.h>

#include <algorithm>
#include <atomic>
#include <iterator>
#include <numeric>
#include <string_view>

namespace gradc {
namespace {

constexpr size_t most_recordings = 8; // of a plan at a time
constexpr size_t most_bytes = size_t{1} << 30; // that several recordings of a plan lend; one may lend more
constexpr size_t most_visits = 64;
constexpr int64_t few_recordings = 2; // beyond them, one has to be asked for twice as often as the one before

std::atomic<int64_t> runs_before = 2;
std::atomic<int64_t> replays = 0;
TellOfGraphs tell_of_graphs;

void tell(const std::string& what, const std::string& plan) {
  if (tell_of_graphs) {
    tell_of_graphs(what, plan);
  }
}

Switches read_switches() {
  auto& context = at::globalContext();
  Switches switches = {
      context.userEnabledCuDNN(),
      context.benchmarkCuDNN(),
      context.benchmarkLimitCuDNN(),
      context.deterministicCuDNN(),
      context.deterministicAlgorithms(),
      context.deterministicAlgorithmsWarnOnly(),
      context.deterministicFillUninitializedMemory(),
      static_cast<int64_t>(context.linalgPreferredBackend()),
      static_cast<int64_t>(context.blasPreferredBackend()),
      static_cast<int64_t>(context.allowFP16ReductionCuBLAS()),
      static_cast<int64_t>(context.allowBF16ReductionCuBLAS()),
      context.allowFP16AccumulationCuBLAS(),
      context._SMCarveout_EXPERIMENTAL().value_or(-1)};
  for (const auto op : {at::Float32Op::ALL, at::Float32Op::CONV, at::Float32Op::RNN, at::Float32Op::MATMUL}) {
    switches.push_back(static_cast<int64_t>(context.float32Precision(at::Float32Backend::CUDA, op)));
  }
  return switches;
}

Situation read_situation(c10::Device device) {
  return {device.index(), current_stream(device).id(), read_switches()};
}

bool are_plain_there(const std::vector<c10::IValue>& inputs, c10::Device device) {
  return std::all_of(inputs.begin(), inputs.end(), [device](const c10::IValue& input) {
    if (!input.isTensor() || !input.toTensor().defined()) {
      return true;
    }
    const at::Tensor& tensor = input.toTensor();
    return has_plain_keys(tensor) && tensor.device() == device && tensor.has_storage();
  });
}

size_t hash_sizes(const std::vector<c10::IValue>& inputs) {
  size_t hash = inputs.size();
  for (const c10::IValue& input : inputs) {
    if (input.isInt()) {
      hash = c10::hash_combine(hash, static_cast<size_t>(input.toInt()));
    } else if (input.isTensor() && input.toTensor().defined()) {
      for (const int64_t size : input.toTensor().sizes()) {
        hash = c10::hash_combine(hash, static_cast<size_t>(size));
      }
    }
  }
  return hash;
}

std::string first_line_of(const std::exception& error) {
  const auto* torchs = dynamic_cast<const c10::Error*>(&error);
  const std::string text = torchs ? torchs->what_without_backtrace() : error.what();
  return text.substr(0, text.find('\n'));
}

// The seed of such a dropout is a tensor of the host's, or of the device's while a graph is recorded: the backward of another kind of run
// could not read it.
bool has_seed_on_host(const Plan& plan, const Step& step, const std::string& op) {
  if (op.find("efficient_attention") == std::string::npos) {
    return false;
  }
  const auto& arguments = step.op.schema().arguments();
  for (size_t i = 0; i < arguments.size(); ++i) {
    const Operand& operand = step.operands[i];
    if (arguments[i].name() == "dropout_p") {
      return operand.kind != Operand::Kind::constant || plan.constants[operand.index].boxed.toDouble() != 0;
    }
  }
  return false;
}

// Libraries of linear algebra wait for the device in the midst of many ops. Refused there, they may be left in any state.
bool is_of_linear_algebra(std::string_view op) {
  constexpr std::string_view reductions[] = {"aten::linalg_vector_norm", "aten::linalg_cross"};
  constexpr std::string_view others[] = {
      "aten::linalg_", "aten::_linalg_", "aten::cholesky", "aten::lu_", "aten::triangular_solve", "aten::geqrf", "aten::ormqr",
      "aten::orgqr", "aten::_cholesky", "aten::_lu"};
  const auto begins = [op](std::string_view name) { return op.starts_with(name); };
  return std::any_of(std::begin(others), std::end(others), begins) && std::none_of(std::begin(reductions), std::end(reductions), begins);
}

// What of an op cannot be recorded, or would be recorded and never be done again.
std::string why_not_op(const Plan& plan, const Step& step) {
  if (step.is_foreign) {
    return "op that is not torch's";
  }
  for (const Operand& operand : step.operands) {
    if (plan.is_constant(operand, &c10::IValue::isGenerator)) {
      return "generator of the user's";
    }
  }
  const auto& name = step.op.operator_name().name;
  if (has_seed_on_host(plan, step, name)) {
    return "attention with dropout, whose seed the host keeps";
  }
  if (is_of_linear_algebra(name)) {
    return "op of linear algebra, whose library may wait for the device";
  }
  const bool is_by_index = name == "aten::index" || name == "aten::index_put" || name == "aten::index_put_" ||
      name == "aten::_index_put_impl_" || name == "aten::_unsafe_index_put" || name == "aten::_unsafe_index";
  const auto is_mask = [&plan](Index slot) {
    const auto& meta = plan.metas[slot];
    return !meta || meta->dtype == c10::ScalarType::Bool || meta->dtype == c10::ScalarType::Byte;
  };
  const bool is_read = is_by_index ? std::any_of(step.reads.begin() + 1, step.reads.end(), is_mask)
                                   : step.op.hasTag(at::Tag::data_dependent_output) || step.op.hasTag(at::Tag::dynamic_output_shape);
  return is_read ? "value that the host reads" : "";
}

// A view, or memory with nothing in it.
bool asks_for_no_kernel(const Step& step) {
  const auto& returns = step.op.schema().returns();
  const auto is_view = [](const c10::Argument& result) { return result.alias_info() && !result.alias_info()->isWrite(); };
  return step.op.operator_name().name.starts_with("aten::empty") || std::any_of(returns.begin(), returns.end(), is_view);
}

std::string why_not_recorded(const Plan& plan, c10::Device device) {
  if (plan.is_dispatched) {
    return "calls that autograd is to see";
  }
  const auto is_elsewhere = [device](const std::optional<Meta>& meta) { return meta && meta->device != device; };
  if (std::any_of(plan.metas.begin(), plan.metas.end(), is_elsewhere)) {
    return "tensors of several devices";
  }
  for (const Step& step : plan.steps) {
    if (auto reason = why_not_op(plan, step); !reason.empty()) {
      return reason;
    }
  }
  return "";
}

// The device that the tensors of a plan are on, where that one can record; its first is asked.
std::optional<c10::Device> find_recording_device(const Plan& plan) {
  for (const auto& meta : plan.metas) {
    if (meta && !meta->device.is_cpu()) {
      return has_graphs(meta->device.type()) ? std::optional(meta->device) : std::nullopt;
    }
  }
  return std::nullopt;
}

} // namespace

void set_runs_before_graphs(int64_t runs) {
  runs_before = runs;
}

void tell_of_device_graphs(TellOfGraphs tell) {
  tell_of_graphs = std::move(tell);
}

int64_t num_replays() {
  return replays;
}

std::shared_ptr<DeviceGraphs> DeviceGraphs::of(const Plan& plan) {
  const auto device = find_recording_device(plan);
  if (!device || std::all_of(plan.steps.begin(), plan.steps.end(), asks_for_no_kernel)) {
    return nullptr;
  }
  if (const auto reason = why_not_recorded(plan, *device); !reason.empty()) {
    tell("by calls: " + reason, plan.name);
    return nullptr;
  }
  return std::make_shared<DeviceGraphs>(*device);
}

DeviceGraphs::DeviceGraphs(c10::Device device) : device_(device) {}
DeviceGraphs::~DeviceGraphs() = default;

DeviceGraphs::Values DeviceGraphs::run(const Plan& plan, Values inputs, Values* left) {
  const bool may_be_recorded = is_undispatched() && !at::hasCallbacks() && are_plain_there(inputs, device_) && !is_captured(device_);
  if (may_be_recorded) {
    if (const std::unique_lock lock(mutex_, std::try_to_lock); lock && !has_failed_) {
      const Situation now = read_situation(device_);
      if (DeviceGraph* graph = find(inputs, now)) {
        ++replays;
        return graph->replay(inputs);
      }
      if (is_worth_recording(inputs, now)) {
        try {
          auto outputs = record(plan, inputs, now);
          tell("recorded", plan.name);
          return outputs;
        } catch (const std::exception& error) {
          has_failed_ = true;
          tell("by calls: " + first_line_of(error), plan.name);
        }
      }
    }
  }
  return run_steps(plan, std::move(inputs), left);
}

void DeviceGraphs::Places::note(const void* place) {
  has_moved_ = has_moved_ || (last_ && place != *last_);
  last_ = place;
}

DeviceGraphs::Visits& DeviceGraphs::visits_of(size_t sizes) {
  const auto known = std::find_if(visits_.begin(), visits_.end(), [sizes](const Visits& visits) { return visits.sizes == sizes; });
  if (known != visits_.end()) {
    visits_.splice(visits_.begin(), visits_, known);
  } else {
    visits_.emplace_front();
    visits_.front().sizes = sizes;
    if (visits_.size() > most_visits) {
      visits_.pop_back();
    }
  }
  return visits_.front();
}

// A plan whose situation never comes back is not recorded at each call.
bool DeviceGraphs::is_worth_recording(const Values& inputs, const Situation& now) {
  Visits& visits = visits_of(hash_sizes(inputs));
  if (visits.places.size() != inputs.size() || !(visits.situation == now)) {
    visits.places.assign(inputs.size(), {});
    visits.situation = now;
  }
  const auto places = places_of(inputs);
  std::vector<bool> do_move(places.size());
  for (size_t i = 0; i < places.size(); ++i) {
    visits.places[i].note(places[i]);
    do_move[i] = visits.places[i].has_moved();
  }
  visits.is_steady = do_move == visits.do_move;
  visits.do_move = std::move(do_move);
  const int64_t patience = std::clamp<int64_t>(num_recorded_ - few_recordings, 0, 20);
  return visits.num_missed++ >= (runs_before << patience) && (visits.is_steady || runs_before == 0);
}

DeviceGraph* DeviceGraphs::find(const Values& inputs, const Situation& now) {
  for (auto graph = graphs_.begin(); graph != graphs_.end(); ++graph) {
    if ((*graph)->takes(inputs, now)) {
      graphs_.splice(graphs_.begin(), graphs_, graph);
      return graphs_.front().get();
    }
  }
  return nullptr;
}

void DeviceGraphs::make_room() {
  const auto add = [](size_t sum, const auto& graph) { return sum + graph->num_bytes(); };
  const size_t another = graphs_.empty() ? 0 : graphs_.front()->num_bytes();
  while (!graphs_.empty() &&
         (graphs_.size() >= most_recordings || std::accumulate(graphs_.begin(), graphs_.end(), another, add) > most_bytes)) {
    graphs_.pop_back();
  }
}

DeviceGraphs::Values DeviceGraphs::record(const Plan& plan, const Values& inputs, const Situation& now) {
  Visits& visits = visits_.front();
  std::vector<bool> copied_memories;
  for (const auto& graph : graphs_) {
    copied_memories = graph->held_memories(std::move(copied_memories));
  }
  make_room();
  graphs_.push_front(std::make_unique<DeviceGraph>(plan, device_, now, inputs, visits.do_move, std::move(copied_memories)));
  visits.num_missed = 0;
  ++num_recorded_;
  return graphs_.front()->replay_as_recorded(inputs);
}

} // namespace gradc
