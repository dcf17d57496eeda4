// Arithmetic: the numbers of an optimizer's formula, computed of a learning rate and a count of steps as Python computes them.
//
// Each operation is on doubles, and rounds once, as Python's on floats. Where Python raises, gives a complex number, or looks at
// special cases first, there is no result here, and Python is asked.
#pragma once

#include <cstdint>
#include <vector>

namespace gradc {

enum class NumberOp : uint8_t { constant, rate, count, add, subtract, multiply, divide, power, negate };

struct NumberStep {
  NumberOp op;
  double value; // of a constant
};

// The numbers that `steps`, in postfix order, leave on the stack; false, and nothing, if one of them is not to be had here.
bool compute(const std::vector<NumberStep>& steps, double rate, double count, std::vector<double>& numbers);

} // namespace gradc
