// The gradient of a slice or of one row: zeros, with it at its place. Two passes over memory, where ATen would make three tensors.
#pragma once

#include "executor/core/csrc/devices.h"

#include <cstdint>
#include <optional>
#include <vector>

namespace gradc {

// Where a slice of a dimension of that size begins: at the beginning if it does not say, from the end if it is negative.
std::optional<int64_t> start_at(const Plan& plan, const Operand& operand, int64_t size);

// Of a step that makes such a gradient.
std::vector<KernelRow> padded_kernels();

} // namespace gradc
