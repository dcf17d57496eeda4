#include "optim/csrc/update.h"

#include "csrc/devices.h"
#include "csrc/plain.h"
#include "csrc/sizes.h"

#include <ATen/ops/empty_like.h>

#include <algorithm>

namespace gradc {
namespace {

// Outside of forward-mode AD no tensor has a forward gradient.
bool is_plain_and_writable(const at::Tensor& tensor) {
  return tensor.defined() && has_plain_keys(tensor) && !tensor.is_inference();
}

void bump_version(const at::Tensor& tensor, uint32_t times) {
  for (uint32_t i = 0; i < times; ++i) {
    tensor.unsafeGetTensorImpl()->bump_version();
  }
}

} // namespace

bool Update::is_writable(const at::Tensor& tensor) const {
  return is_plain_and_writable(tensor) && is_here(tensor);
}

const char* Update::why_not_alike(const Row& row) const {
  const at::Tensor& parameter = *row[0];
  if (!is_writable(parameter) || !parameter.is_non_overlapping_and_dense() || is_in_forward_mode()) {
    return "parameter of a kind that only torch's own step takes";
  }
  for (size_t i = 1; i < num_operands(); ++i) {
    const at::Tensor& other = *row[i];
    if (!is_writable(other) || other.scalar_type() != parameter.scalar_type() || !are_equal(other.sizes(), parameter.sizes())) {
      return "gradient or state of another kind than its parameter";
    }
    if (i > 1 && !are_equal(other.strides(), parameter.strides())) {
      return "state that is laid out otherwise than its parameter";
    }
  }
  return "";
}

void Update::count_writes(const Row& row) const {
  for (size_t i = 0; i < num_operands(); ++i) {
    bump_version(*row[i], num_writes_[i]);
  }
}

std::vector<Update::Row> rows_of(const std::vector<TensorColumn>& operands) {
  std::vector<Update::Row> rows(operands.at(0).size());
  for (size_t number = 0; number < rows.size(); ++number) {
    for (size_t i = 0; i < operands.size(); ++i) {
      rows[number][i] = &operands[i].at(number);
    }
  }
  return rows;
}

bool is_scalar(const at::Tensor& scalar) {
  return is_plain_and_writable(scalar) && is_on(scalar, &KnownDevice::is_on_host) && scalar.dim() == 0 &&
      (scalar.scalar_type() == at::kFloat || scalar.scalar_type() == at::kDouble);
}

std::string why_not_scalars(const std::vector<at::Tensor>& scalars) {
  std::vector<const void*> places;
  for (const auto& scalar : scalars) {
    if (!is_scalar(scalar)) {
      return "step count that is no float32 or float64 tensor on the CPU";
    }
    places.push_back(scalar.const_data_ptr());
  }
  std::sort(places.begin(), places.end());
  if (std::adjacent_find(places.begin(), places.end()) != places.end()) {
    return "step counts that share memory";
  }
  return "";
}

std::vector<double> next_counts(const std::vector<at::Tensor>& steps) {
  std::vector<double> counts;
  counts.reserve(steps.size());
  for (const auto& step : steps) {
    counts.push_back(next_count(step));
  }
  return counts;
}

double next_count(const at::Tensor& step) {
  return step.scalar_type() == at::kFloat ? *step.const_data_ptr<float>() + 1.0F : *step.const_data_ptr<double>() + 1.0;
}

void set_scalar(const at::Tensor& scalar, double value) {
  if (scalar.scalar_type() == at::kFloat) {
    *scalar.mutable_data_ptr<float>() = static_cast<float>(value);
  } else {
    *scalar.mutable_data_ptr<double>() = value;
  }
  bump_version(scalar, 1);
}

} // namespace gradc
