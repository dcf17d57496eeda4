#include "executor/cpu/csrc/numbers.h"

#include <cmath>
#include <cstring>
#include <limits>

namespace gradc {

std::optional<double> number_at(const Plan& plan, const Operand& operand) {
  if (operand.kind != Operand::Kind::constant) {
    return {};
  }
  const c10::IValue& boxed = plan.constants[operand.index].boxed;
  const bool is_tensor = boxed.isTensor() && boxed.toTensor().unsafeGetTensorImpl()->is_wrapped_number();
  if (!boxed.isScalar() && !is_tensor) {
    return {};
  }
  const c10::Scalar number = is_tensor ? boxed.toTensor().item() : boxed.toScalar();
  if (number.isFloatingPoint()) {
    return number.toDouble();
  }
  constexpr int64_t exact = 1 << 24; // integers that every floating dtype here holds
  return number.isIntegral(/*includeBool=*/false) && std::abs(number.toLong()) <= exact
      ? std::optional<double>(static_cast<double>(number.toLong()))
      : std::nullopt;
}

std::optional<int64_t> int_at(const Plan& plan, const Operand& operand) {
  return plan.is_constant(operand, &c10::IValue::isInt) ? std::optional(plan.constants[operand.index].boxed.toInt()) : std::nullopt;
}

std::optional<NumberBytes> bytes_of(double number, c10::ScalarType dtype) {
  NumberBytes bytes{};
  if (std::isnan(number)) {
    return {};
  }
  if (dtype == c10::ScalarType::Double) {
    std::memcpy(bytes.data(), &number, sizeof(double));
    return bytes;
  }
  if (dtype != c10::ScalarType::Float || (std::isfinite(number) && std::abs(number) > std::numeric_limits<float>::max())) {
    return {};
  }
  const auto narrow = static_cast<float>(number);
  std::memcpy(bytes.data(), &narrow, sizeof(float));
  return bytes;
}

} // namespace gradc
