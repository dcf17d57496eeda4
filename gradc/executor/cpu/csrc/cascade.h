// ATen's cascade, in which it sums so that rounding errors grow slowly: every so many rows the sums of a level move up one level.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>

namespace gradc {

inline constexpr int num_levels = 4;

template <class T, int64_t width>
using Sums = std::array<T, width>;

// Level by level, up to one that is not full: `done` rows have been added, and `1 << power` of them fill the lowest.
template <class T, int64_t width>
[[gnu::always_inline]] inline void carry(std::array<Sums<T, width>, num_levels>& levels, int64_t done, int power) {
  for (int level = 1; level < num_levels; ++level) {
    for (int64_t column = 0; column < width; ++column) {
      levels[level][column] += levels[level - 1][column];
    }
    levels[level - 1].fill(0);
    if (done & (((int64_t{1} << power) - 1) << (level * power))) {
      return;
    }
  }
}

// The sums of `width` columns. Strides count elements; that of the columns may be a constant.
template <int64_t width, class T, class Stride>
[[gnu::always_inline]] inline Sums<T, width> sum_in_cascade(const T* in, int64_t rows, int64_t row_stride, Stride column_stride) {
  const int log = rows > 1 ? static_cast<int>(std::bit_width(static_cast<uint64_t>(rows - 1))) : 0; // rounded up
  const int power = std::max(4, log / num_levels);
  const int64_t step = int64_t{1} << power;
  std::array<Sums<T, width>, num_levels> levels{};
  for (int64_t row = 0; row < rows;) {
    Sums<T, width> sums = levels[0]; // in registers
    for (const int64_t end = std::min(rows, row + step); row < end; ++row) {
      for (int64_t column = 0; column < width; ++column) {
        sums[column] += in[row * row_stride + column * column_stride];
      }
    }
    levels[0] = sums;
    if (row % step == 0) {
      carry<T, width>(levels, row, power);
    }
  }
  for (int level = 1; level < num_levels; ++level) {
    for (int64_t column = 0; column < width; ++column) {
      levels[0][column] += levels[level][column];
    }
  }
  return levels[0];
}

} // namespace gradc
