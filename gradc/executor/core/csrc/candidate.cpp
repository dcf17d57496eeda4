#include "executor/core/csrc/candidate.h"

#include "csrc/plain.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/ops/alias.h>
#include <torch/csrc/inductor/aoti_runner/model_container_runner_cpu.h>

#include <algorithm>

namespace gradc {
namespace {

bool is_laid_out(const c10::IValue& value, const Meta& meta) {
  if (!is_plain_on_cpu(value)) {
    return false;
  }
  const at::Tensor& tensor = value.toTensor();
  return tensor.scalar_type() == meta.dtype && tensor.sizes() == meta.sizes && tensor.strides() == meta.strides;
}

bool is_same_number(const c10::IValue& value, const c10::IValue& known) {
  return value.isNone() ? known.isNone() : value.isInt() && known.isInt() && value.toInt() == known.toInt();
}

// Inductor has the base itself for a view that is laid out as its base; eager has a tensor of its own.
void make_view(c10::IValue& view, const c10::IValue& base) {
  if (view.unsafeToTensorImpl() == base.unsafeToTensorImpl()) {
    view = at::alias(base.toTensor());
  }
  if (auto* tensor = view.unsafeToTensorImpl(); !tensor->is_inference()) {
    tensor->set_version_counter(base.unsafeToTensorImpl()->version_counter());
  }
}

// A kernel of eager's that the code calls may have counted already.
void count_up(c10::TensorImpl* tensor, uint32_t version) {
  while (!tensor->is_inference() && tensor->version_counter().current_version() < version) {
    tensor->bump_version();
  }
}

uint32_t version_of(const c10::IValue& value) {
  auto* tensor = value.unsafeToTensorImpl();
  return tensor->is_inference() ? 0 : tensor->version_counter().current_version();
}

} // namespace

Candidate::Candidate(CandidateSpec spec)
    : spec_(std::move(spec)),
      is_kept_(spec_.inputs.size(), false),
      runner_(std::make_unique<torch::inductor::AOTIModelContainerRunnerCpu>(spec_.path)) {
  for (const Origin& output : spec_.outputs) {
    if (output.kind == Origin::Kind::input) {
      is_kept_.at(output.index) = true;
    }
  }
  for (const auto& counted : spec_.counted) {
    is_kept_.at(counted.first) = true;
  }
  for (const auto& [view, is_of_input, base] : spec_.views) {
    if (is_of_input) {
      is_kept_.at(base) = true;
    }
  }
}

Candidate::~Candidate() = default;

bool Candidate::takes(const std::vector<c10::IValue>& inputs) const {
  if (inputs.size() != spec_.inputs.size() || at::get_num_threads() != spec_.num_threads ||
      at::globalContext().deterministicAlgorithms()) {
    return false;
  }
  for (size_t i = 0; i < inputs.size(); ++i) {
    const auto& [meta, number] = spec_.inputs[i];
    if (!(meta ? is_laid_out(inputs[i], *meta) : is_same_number(inputs[i], number))) {
      return false;
    }
  }
  return is_written_alone(inputs);
}

// The code takes all of its inputs to be distinct where it writes into one.
bool Candidate::is_written_alone(const std::vector<c10::IValue>& inputs) const {
  return std::none_of(spec_.written.begin(), spec_.written.end(), [&](size_t written) {
    const at::Tensor& target = inputs[written].toTensor();
    for (size_t i = 0; i < inputs.size(); ++i) {
      if (i != written && inputs[i].isTensor() && inputs[i].toTensor().is_alias_of(target)) {
        return true;
      }
    }
    return false;
  });
}

std::vector<c10::IValue> Candidate::run(std::vector<c10::IValue> inputs) const {
  std::vector<std::pair<c10::IValue, uint32_t>> versions;
  for (const auto& [position, times] : spec_.counted) {
    versions.emplace_back(inputs[position], version_of(inputs[position]) + static_cast<uint32_t>(times));
  }
  std::vector<at::Tensor> given;
  given.reserve(inputs.size() + spec_.constants.size());
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (inputs[i].isTensor()) {
      given.push_back(is_kept_[i] ? inputs[i].toTensor() : std::move(inputs[i]).toTensor());
    }
  }
  given.insert(given.end(), spec_.constants.begin(), spec_.constants.end());
  std::vector<at::Tensor> made = runner_->boxed_run(std::move(given));
  for (const auto& [value, version] : versions) {
    count_up(value.unsafeToTensorImpl(), version);
  }
  std::vector<c10::IValue> outputs;
  outputs.reserve(spec_.outputs.size());
  for (const auto& [kind, index] : spec_.outputs) {
    switch (kind) {
      case Origin::Kind::made:
        outputs.emplace_back(std::move(made.at(index)));
        break;
      case Origin::Kind::input:
        outputs.push_back(inputs[index]);
        break;
      case Origin::Kind::again:
        outputs.push_back(outputs.at(index));
        break;
      case Origin::Kind::number:
        outputs.emplace_back(index);
        break;
      case Origin::Kind::none:
        outputs.emplace_back();
        break;
    }
  }
  for (const auto& [view, is_of_input, base] : spec_.views) {
    make_view(outputs[view], is_of_input ? inputs[base] : outputs[base]);
  }
  return outputs;
}

} // namespace gradc
