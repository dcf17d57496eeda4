#include "executor/cpu/csrc/fused_block_known.h"

#include "executor/cpu/csrc/direct.h"

#include <algorithm>
#include <numeric>
#include <string>

namespace gradc {
namespace {

void add_slots(const Plan& plan, const Operand& operand, std::vector<Index>& slots) {
  if (operand.kind == Operand::Kind::slot) {
    slots.push_back(operand.index);
  } else if (operand.kind == Operand::Kind::pack) {
    for (const Operand& item : plan.packs[operand.index].items) {
      add_slots(plan, item, slots);
    }
  }
}

// The last step that reads each slot; one behind all steps for an output.
std::vector<Index> last_reads(const Plan& plan) {
  std::vector<Index> last(plan.metas.size(), -1);
  for (size_t i = 0; i < plan.steps.size(); ++i) {
    for (const Index slot : plan.steps[i].reads) {
      last[slot] = static_cast<Index>(i);
    }
  }
  std::vector<Index> outputs;
  for (const Operand& output : plan.outputs) {
    add_slots(plan, output, outputs);
  }
  for (const Index slot : outputs) {
    last[slot] = static_cast<Index>(plan.steps.size());
  }
  return last;
}

bool returns_alias(const Step& step) {
  const auto& returned = step.op.schema().returns();
  return std::any_of(returned.begin(), returned.end(), [](const auto& each) { return each.alias_info() != nullptr; });
}

// Slots whose tensors share memory, by what the steps say, have the same number.
std::vector<Index> families(const Plan& plan) {
  std::vector<Index> family(plan.metas.size());
  std::iota(family.begin(), family.end(), 0);
  for (const Step& step : plan.steps) {
    const bool is_view = !step.views.empty() || returns_alias(step);
    for (const Index out : step.outs) {
      if (is_view && out >= 0 && !step.reads.empty()) {
        family[out] = family[step.reads[0]];
      }
    }
  }
  return family;
}

// Ops whose result may be laid out as settings say that are no part of a plan.
bool is_laid_out_by_settings(const std::string& op) {
  return op.find("convolution") != std::string::npos || op.find("batch_norm") != std::string::npos;
}

} // namespace

Known::Known(const Plan& plan) : plan(plan), last_read(last_reads(plan)), family(families(plan)) {}

bool may_call_with_tensors(const Plan& plan, const Step& step) {
  const std::string& op = step.op.operator_name().name;
  const bool is_known = std::all_of(step.outs.begin(), step.outs.end(), [&](Index out) { return out < 0 || plan.metas[out]; });
  if (!(step.kernel || step.exact.call) || !is_known || is_laid_out_by_settings(op) || op == "aten::_unsafe_view") {
    return false;
  }
  if (is_in_place(step)) {
    return step.outs.size() == 1 && (step.outs[0] < 0 || step.outs[0] == step.reads[0]);
  }
  return !returns_alias(step);
}

} // namespace gradc
