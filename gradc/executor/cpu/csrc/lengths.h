// Loops over rows that are short: with their length as a constant, the compiler needs no inner loop.
#pragma once

#include <cstdint>
#include <type_traits>
#include <utility>

namespace gradc {

// Those of points, heads and small layers.
using ShortLengths = std::integer_sequence<int64_t, 1, 2, 3, 4, 8, 16, 32>;

// True of the type of a length that is a constant.
template <class Length>
constexpr bool is_constant = !std::is_integral_v<Length>;

// Calls `function` with the length: as a constant, if it is one of `lengths`.
template <class Function, int64_t... lengths>
void with_length(int64_t length, Function function, std::integer_sequence<int64_t, lengths...> /*of_those*/) {
  const bool is_done = ((length == lengths && (function(std::integral_constant<int64_t, lengths>()), true)) || ...);
  if (!is_done) {
    function(length);
  }
}

template <class Function>
void with_length(int64_t length, Function function) {
  with_length(length, function, ShortLengths());
}

} // namespace gradc
