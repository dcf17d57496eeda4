// Numbers among an op's operands, as elements of its dtype.
#pragma once

#include "executor/core/csrc/plan.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>

namespace gradc {

using NumberBytes = std::array<std::byte, sizeof(double)>;

// The value of a constant number, or of a tensor that a Python number became: such takes the other operand's dtype.
std::optional<double> number_at(const Plan& plan, const Operand& operand);

// The value of a constant int, such as a dimension.
std::optional<int64_t> int_at(const Plan& plan, const Operand& operand);

// A number as one float or double; nothing for NaN, for one that the dtype does not hold, and for any other dtype.
std::optional<NumberBytes> bytes_of(double number, c10::ScalarType dtype);

} // namespace gradc
