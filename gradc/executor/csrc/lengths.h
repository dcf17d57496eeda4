// Loops over rows that are short: with their length as a constant, the compiler needs no inner loop.
#pragma once

#include <cstdint>
#include <type_traits>

namespace gradc {

// Calls `function` with the length: as a constant, if it is one of those of points, heads and small layers.
template <class Function>
void with_length(int64_t length, Function function) {
  switch (length) {
    case 1:
      return function(std::integral_constant<int64_t, 1>());
    case 2:
      return function(std::integral_constant<int64_t, 2>());
    case 3:
      return function(std::integral_constant<int64_t, 3>());
    case 4:
      return function(std::integral_constant<int64_t, 4>());
    case 8:
      return function(std::integral_constant<int64_t, 8>());
    case 16:
      return function(std::integral_constant<int64_t, 16>());
    case 32:
      return function(std::integral_constant<int64_t, 32>());
    default:
      return function(length);
  }
}

} // namespace gradc
