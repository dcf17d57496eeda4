#include "optim/csrc/arithmetic.h"

#include <cmath>
#include <limits>

namespace gradc {
namespace {

double of_two(NumberOp op, double a, double b) {
  constexpr double none = std::numeric_limits<double>::quiet_NaN();
  switch (op) {
    case NumberOp::add:
      return a + b;
    case NumberOp::subtract:
      return a - b;
    case NumberOp::multiply:
      return a * b;
    case NumberOp::divide:
      return b == 0 ? none : a / b;
    default:
      return a > 0 ? std::pow(a, b) : none;
  }
}

} // namespace

bool compute(const std::vector<NumberStep>& steps, double rate, double count, std::vector<double>& numbers) {
  numbers.clear();
  for (const auto& [op, value] : steps) {
    switch (op) {
      case NumberOp::constant:
        numbers.push_back(value);
        break;
      case NumberOp::rate:
        numbers.push_back(rate);
        break;
      case NumberOp::count:
        numbers.push_back(count);
        break;
      case NumberOp::negate:
        numbers.back() = -numbers.back();
        break;
      default:
        const double second = numbers.back();
        numbers.pop_back();
        numbers.back() = of_two(op, numbers.back(), second);
        break;
    }
    if (!std::isfinite(numbers.back())) {
      return false;
    }
  }
  return true;
}

} // namespace gradc
