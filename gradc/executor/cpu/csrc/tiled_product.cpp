#include "executor/cpu/csrc/tiled_product.h"

#include "executor/core/csrc/prove.h"
#include "executor/cpu/csrc/loops.h"

#include <ATen/Parallel.h>
#include <ATen/Version.h>
#include <c10/core/alignment.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#ifdef GRADC_HAS_TILES
#include <immintrin.h>
#endif

namespace gradc {
namespace {

constexpr int64_t longest_chain = 192; // beyond, BLAS adds up parts
constexpr int64_t most_products = int64_t{1} << 25; // multiplications: beyond, its panels may pay
constexpr int64_t most_beside_threads = int64_t{1} << 16; // where it may use several
constexpr int64_t fewest_columns = 8;
constexpr int64_t fewest_elements = 16, longest_inner = 4096, longest_extent = int64_t{1} << 22;
constexpr int64_t fewest_compared = 1024; // elements: two ways to round often give the same number

#ifdef GRADC_HAS_TILES

// A tile of the result, and where its factors begin. A fused chain begins with 0, and is added to the addend; another begins with it.
struct Tile {
  const float *x, *y, *addend;
  float* out;
  int64_t x_down, x_across, y_down, addend_down, out_down, inner;
  int last; // columns in the last register
};

template <int num_rows, int num_vectors, bool is_fused>
[[gnu::target("avx512f")]] void tile_512(const Tile& tile) {
  constexpr int lanes = 16;
  const __mmask16 last = static_cast<__mmask16>((1U << tile.last) - 1);
  const auto load = [last](const float* from, int vector) __attribute__((target("avx512f"), always_inline)) {
    return vector + 1 < num_vectors ? _mm512_loadu_ps(from + vector * lanes) : _mm512_maskz_loadu_ps(last, from + vector * lanes);
  };
  __m512 sums[num_rows][num_vectors];
#pragma GCC unroll 12
  for (int row = 0; row < num_rows; ++row) {
#pragma GCC unroll 8
    for (int vector = 0; vector < num_vectors; ++vector) {
      sums[row][vector] =
          !is_fused && tile.addend ? load(tile.addend + row * tile.addend_down, vector) : _mm512_setzero_ps();
    }
  }
  const float* x = tile.x;
  const float* y = tile.y;
  for (int64_t p = 0; p < tile.inner; ++p, x += tile.x_across, y += tile.y_down) {
    __m512 of_y[num_vectors];
#pragma GCC unroll 8
    for (int vector = 0; vector < num_vectors; ++vector) {
      of_y[vector] = load(y, vector);
    }
#pragma GCC unroll 12
    for (int row = 0; row < num_rows; ++row) {
      const __m512 of_x = _mm512_set1_ps(x[row * tile.x_down]);
#pragma GCC unroll 8
      for (int vector = 0; vector < num_vectors; ++vector) {
        sums[row][vector] = is_fused ? _mm512_fmadd_ps(of_x, of_y[vector], sums[row][vector])
                                     : _mm512_add_ps(_mm512_mul_ps(of_x, of_y[vector]), sums[row][vector]);
      }
    }
  }
#pragma GCC unroll 12
  for (int row = 0; row < num_rows; ++row) {
#pragma GCC unroll 8
    for (int vector = 0; vector < num_vectors; ++vector) {
      __m512 sum = sums[row][vector];
      if (is_fused) {
        const __m512 addend = tile.addend ? load(tile.addend + row * tile.addend_down, vector) : _mm512_setzero_ps();
        sum = _mm512_add_ps(addend, sum); // which makes 0 of -0 where there is none
      }
      float* out = tile.out + row * tile.out_down + vector * lanes;
      if (vector + 1 < num_vectors) {
        _mm512_storeu_ps(out, sum);
      } else {
        _mm512_mask_storeu_ps(out, last, sum);
      }
    }
  }
}

// `is_whole`: no register is filled in part, which takes long here.
template <int num_rows, int num_vectors, bool is_fused, bool is_whole>
[[gnu::target("avx2,fma")]] void fill_256(const Tile& tile) {
  constexpr int lanes = 8;
  const __m256i last = _mm256_cmpgt_epi32(_mm256_set1_epi32(tile.last), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
  const auto load = [last](const float* from, int vector) __attribute__((target("avx2,fma"), always_inline)) {
    return is_whole || vector + 1 < num_vectors ? _mm256_loadu_ps(from + vector * lanes) : _mm256_maskload_ps(from + vector * lanes, last);
  };
  __m256 sums[num_rows][num_vectors];
#pragma GCC unroll 12
  for (int row = 0; row < num_rows; ++row) {
#pragma GCC unroll 8
    for (int vector = 0; vector < num_vectors; ++vector) {
      sums[row][vector] =
          !is_fused && tile.addend ? load(tile.addend + row * tile.addend_down, vector) : _mm256_setzero_ps();
    }
  }
  const float* x = tile.x;
  const float* y = tile.y;
  for (int64_t p = 0; p < tile.inner; ++p, x += tile.x_across, y += tile.y_down) {
    __m256 of_y[num_vectors];
#pragma GCC unroll 8
    for (int vector = 0; vector < num_vectors; ++vector) {
      of_y[vector] = load(y, vector);
    }
#pragma GCC unroll 12
    for (int row = 0; row < num_rows; ++row) {
      const __m256 of_x = _mm256_broadcast_ss(x + row * tile.x_down);
#pragma GCC unroll 8
      for (int vector = 0; vector < num_vectors; ++vector) {
        sums[row][vector] = is_fused ? _mm256_fmadd_ps(of_x, of_y[vector], sums[row][vector])
                                     : _mm256_add_ps(_mm256_mul_ps(of_x, of_y[vector]), sums[row][vector]);
      }
    }
  }
#pragma GCC unroll 12
  for (int row = 0; row < num_rows; ++row) {
#pragma GCC unroll 8
    for (int vector = 0; vector < num_vectors; ++vector) {
      __m256 sum = sums[row][vector];
      if (is_fused) {
        const __m256 addend = tile.addend ? load(tile.addend + row * tile.addend_down, vector) : _mm256_setzero_ps();
        sum = _mm256_add_ps(addend, sum); // which makes 0 of -0 where there is none
      }
      float* out = tile.out + row * tile.out_down + vector * lanes;
      if (is_whole || vector + 1 < num_vectors) {
        _mm256_storeu_ps(out, sum);
      } else {
        _mm256_maskstore_ps(out, last, sum);
      }
    }
  }
}

template <int num_rows, int num_vectors, bool is_fused>
void tile_256(const Tile& tile) {
  tile.last == 8 ? fill_256<num_rows, num_vectors, is_fused, true>(tile) : fill_256<num_rows, num_vectors, is_fused, false>(tile);
}

using CallTile = void (*)(const Tile&);

// With one register across, sums wait for each other unless there are more rows of them.
template <int num_vectors>
constexpr int most_rows = num_vectors == 1 ? 12 : 6;

// The calls of tiles with so many registers across, by rows - 1.
using CallTiles = std::vector<CallTile>;

template <int num_vectors, bool is_fused>
CallTiles calls_512() {
  return []<int... rows>(std::integer_sequence<int, rows...>) {
    return CallTiles{&tile_512<rows + 1, num_vectors, is_fused>...};
  }(std::make_integer_sequence<int, most_rows<num_vectors>>());
}

template <int num_vectors, bool is_fused>
CallTiles calls_256() {
  return []<int... rows>(std::integer_sequence<int, rows...>) {
    return CallTiles{&tile_256<rows + 1, num_vectors, is_fused>...};
  }(std::make_integer_sequence<int, most_rows<num_vectors>>());
}

// How a machine makes tiles: so many numbers in a register, and what is called, by registers across - 1 and rows - 1.
struct Tiles {
  int lanes;
  std::vector<CallTiles> fused, unfused;
};

// For so many columns. Those of the machine, or what torch was told to take it for; null where that has no fused multiply-adds.
const Tiles* tiles_for(int64_t columns) {
  static const Tiles of_512{
      16,
      {calls_512<1, true>(), calls_512<2, true>(), calls_512<3, true>(), calls_512<4, true>()},
      {calls_512<1, false>(), calls_512<2, false>(), calls_512<3, false>(), calls_512<4, false>()}};
  static const Tiles of_256{8, {calls_256<1, true>(), calls_256<2, true>()}, {calls_256<1, false>(), calls_256<2, false>()}};
  static const std::string capability = at::get_cpu_capability();
  const bool has_512 = capability == "AVX512", has_256 = has_512 || capability == "AVX2";
  return has_512 && columns > of_256.lanes ? &of_512 : has_256 ? &of_256 : nullptr;
}

// Eight rows of eight numbers, as columns.
[[gnu::target("avx2")]] void turn_eight(const float* in, int64_t in_down, float* out, int64_t out_down) {
  __m256 rows[8], pairs[8], fours[8];
  for (int i = 0; i < 8; ++i) {
    rows[i] = _mm256_loadu_ps(in + i * in_down);
  }
  for (int i = 0; i < 8; i += 2) {
    pairs[i] = _mm256_unpacklo_ps(rows[i], rows[i + 1]);
    pairs[i + 1] = _mm256_unpackhi_ps(rows[i], rows[i + 1]);
  }
  for (int i = 0; i < 8; i += 4) {
    fours[i] = _mm256_shuffle_ps(pairs[i], pairs[i + 2], 0x44);
    fours[i + 1] = _mm256_shuffle_ps(pairs[i], pairs[i + 2], 0xEE);
    fours[i + 2] = _mm256_shuffle_ps(pairs[i + 1], pairs[i + 3], 0x44);
    fours[i + 3] = _mm256_shuffle_ps(pairs[i + 1], pairs[i + 3], 0xEE);
  }
  for (int i = 0; i < 4; ++i) {
    _mm256_storeu_ps(out + i * out_down, _mm256_permute2f128_ps(fours[i], fours[i + 4], 0x20));
    _mm256_storeu_ps(out + (i + 4) * out_down, _mm256_permute2f128_ps(fours[i], fours[i + 4], 0x31));
  }
}

// `out[p][j] = in[j][p]`, for so many rows j and columns p of `in`.
void turn(const float* in, int64_t in_down, int64_t rows, int64_t columns, float* out, int64_t out_down) {
  for (int64_t j = 0; j < rows; j += 8) {
    for (int64_t p = 0; p < columns; p += 8) {
      if (j + 8 <= rows && p + 8 <= columns) {
        turn_eight(in + j * in_down + p, in_down, out + p * out_down + j, out_down);
        continue;
      }
      for (int64_t row = j; row < std::min(rows, j + 8); ++row) {
        for (int64_t column = p; column < std::min(columns, p + 8); ++column) {
          out[column * out_down + row] = in[row * in_down + column];
        }
      }
    }
  }
}

// The product of so much of the inner dimension that each element is one chain. Rows of y are numbers side by side, or columns are.
void multiply_part(
    const Product::Tiled& sizes, const float* x, const float* y, const float* addend, int64_t addend_stride, float* out) {
  thread_local std::vector<float> turned;
  const Tiles& of = *tiles_for(sizes.columns);
  const auto& calls = sizes.is_fused ? of.fused : of.unfused;
  const auto most_columns = static_cast<int64_t>(of.lanes * calls.size());
  for (int64_t column = 0; column < sizes.columns; column += most_columns) {
    const int64_t columns = std::min(most_columns, sizes.columns - column);
    const int64_t vectors = (columns + of.lanes - 1) / of.lanes;
    const CallTiles& with_vectors = calls[vectors - 1];
    const auto most_rows = static_cast<int64_t>(with_vectors.size());
    const float* of_y = y + column * sizes.y_across;
    int64_t y_down = sizes.y_down;
    if (sizes.y_across != 1) { // its rows are made first
      y_down = most_columns;
      turned.resize(std::max<size_t>(turned.size(), y_down * sizes.inner));
      turn(of_y, sizes.y_across, columns, sizes.inner, turned.data(), y_down);
      of_y = turned.data();
    }
    for (int64_t row = 0; row < sizes.rows;) {
      const int64_t left = sizes.rows - row;
      const int64_t rows = left > most_rows && left < 2 * most_rows ? (left + 1) / 2 : std::min(left, most_rows);
      const float* added = addend ? addend + row * addend_stride + column : nullptr;
      with_vectors[rows - 1](
          {x + row * sizes.x_down, of_y, added, out + row * sizes.columns + column, sizes.x_down, sizes.x_across, y_down,
           addend_stride, sizes.columns, sizes.inner, static_cast<int>(columns - (vectors - 1) * of.lanes)});
      row += rows;
    }
  }
}

// A narrow result, whose columns are made as rows: the factors change places.
void multiply_narrow(
    const Product::Tiled& sizes, const float* x, const float* y, const float* addend, int64_t addend_stride, float* out) {
  thread_local std::vector<float> columns;
  columns.resize(std::max<size_t>(columns.size(), sizes.rows * sizes.columns));
  Product::Tiled changed = sizes;
  std::swap(changed.rows, changed.columns);
  changed.x_down = sizes.y_across;
  changed.x_across = sizes.y_down;
  changed.y_down = sizes.x_across;
  changed.y_across = sizes.x_down;
  for (int64_t column = 0; addend && column < sizes.columns; ++column) {
    for (int64_t row = 0; row < sizes.rows; ++row) {
      columns[column * sizes.rows + row] = addend[row * addend_stride + column];
    }
  }
  multiply_part(changed, y, x, addend ? columns.data() : nullptr, sizes.rows, columns.data());
  for (int64_t row = 0; row < sizes.rows; ++row) {
    for (int64_t column = 0; column < sizes.columns; ++column) {
      out[row * sizes.columns + column] = columns[column * sizes.rows + row];
    }
  }
}

GRADC_WIDE void multiply_number(float* out, const float* row, float number, int64_t size) {
  for (int64_t i = 0; i < size; ++i) {
    out[i] = number * row[i];
  }
}

// A column by a row.
void multiply_outer(const Product::Tiled& sizes, const float* x, const float* y, float* out) {
  for (int64_t row = 0; row < sizes.rows; ++row, out += sizes.columns) {
    multiply_number(out, y, x[row * sizes.x_down], sizes.columns);
  }
}

#endif

bool is_narrow(const Product::Tiled& sizes) {
  return sizes.columns < fewest_columns;
}

int64_t part_of(int64_t inner) {
  return inner <= longest_chain ? inner : inner < 2 * longest_chain ? inner / 2 : longest_chain;
}

// ---- what BLAS does

// The numbers of a factor, 0 or 1, or of an addend, 2. Their sums depend on the order of the additions; in the first trial most are zeros of
// either sign, and in the second their products are too small, and negative. They come again where no stride of a matrix does.
constexpr size_t period = 8209;
using Numbers = std::array<float, period>;

Numbers make_numbers(int trial, uint32_t which) {
  Numbers numbers{};
  for (size_t i = 0; i < period; ++i) {
    uint32_t mixed = (static_cast<uint32_t>(i) + which * 1000003U) * 2654435761U;
    mixed = (mixed ^ (mixed >> 15)) * 2246822519U;
    mixed ^= mixed >> 13;
    const float number = (static_cast<float>(mixed >> 8) / 8388608.0F - 1) * static_cast<float>(1U << (mixed % 9)) / 16;
    const float small = (which == 0 ? -1 : 1) * std::abs(number) * 1e-24F, zero = i % 2 ? -0.0F : 0.0F;
    numbers[i] = trial == 0 && i % 3 != 1 ? zero : trial == 1 ? small : number;
  }
  return numbers;
}

void fill_for(float* numbers, size_t size, int trial, uint32_t which) {
  static const auto made = [] {
    std::array<std::array<Numbers, 3>, 3> numbers{};
    for (int kind = 0; kind < 3; ++kind) {
      for (uint32_t factor = 0; factor < 3; ++factor) {
        numbers[kind][factor] = make_numbers(kind, factor);
      }
    }
    return numbers;
  }();
  const Numbers& from = made[std::min(trial, 2)][which];
  for (size_t done = 0, at = trial; done < size; at = 0) {
    const size_t count = std::min(period - at, size - done);
    std::copy_n(from.begin() + at, count, numbers + done);
    done += count;
  }
}

int64_t extent(int64_t rows, int64_t down, int64_t columns, int64_t across) {
  return (rows - 1) * down + (columns - 1) * across + 1;
}

// Numbers from the first of a matrix to its last.
int64_t extent_of_x(const Product::Tiled& sizes) {
  return extent(sizes.rows, sizes.x_down, sizes.inner, sizes.x_across);
}
int64_t extent_of_y(const Product::Tiled& sizes) {
  return extent(sizes.inner, sizes.y_down, sizes.columns, sizes.y_across);
}

bool is_worth_asking(const Product::Tiled& sizes, int num_threads) {
  const bool has_vectors = is_narrow(sizes) ? sizes.rows >= fewest_columns && (sizes.x_down == 1 || sizes.x_across == 1)
                                            : sizes.y_across == 1 || sizes.y_down == 1;
  const int64_t num_elements = sizes.rows * sizes.columns;
  return has_vectors && num_elements >= fewest_elements && sizes.inner <= longest_inner &&
      num_elements * sizes.inner <= (num_threads == 1 ? most_products : most_beside_threads) && extent_of_x(sizes) <= longest_extent &&
      extent_of_y(sizes) <= longest_extent;
}

// The numbers of a trial, which begin as a tensor's do, or so many behind.
class Placed {
 public:
  Placed(int64_t size, int trial, uint32_t which, int behind) : memory_(size + behind + c10::gAlignment) {
    const auto past = reinterpret_cast<uintptr_t>(memory_.data()) % c10::gAlignment;
    begin_ = memory_.data() + (past ? c10::gAlignment - past : 0) / sizeof(float) + behind;
    fill_for(begin_, size, trial, which);
  }

  float* begin() const {
    return begin_;
  }

 private:
  std::vector<float> memory_;
  float* begin_;
};

bool agrees(const Product& product, const Product::Tiled& sizes, bool adds, CallBlas call) {
  const int64_t num_elements = sizes.rows * sizes.columns;
  const int num_trials = 3 + static_cast<int>(fewest_compared / num_elements);
  for (int trial = 0; trial < num_trials; ++trial) { // each with memory that begins elsewhere
    const Placed x(extent_of_x(sizes), trial, 0, trial), y(extent_of_y(sizes), trial, 1, trial), addend(num_elements, trial, 2, 0);
    const Placed of_blas(num_elements, trial, 2, sizes.needs_alignment ? 0 : trial);
    std::vector<float> ours(num_elements);
    multiply_in_tiles(sizes, x.begin(), y.begin(), adds ? addend.begin() : nullptr, sizes.columns, ours.data());
    call(product, x.begin(), y.begin(), adds ? 1.0F : 0.0F, of_blas.begin());
    if (!have_same_bits(ours.data(), of_blas.begin(), num_elements)) {
      return false;
    }
  }
  return true;
}

// In which BLAS may make a product, or a sum with one.
std::vector<Product::Tiled> ways_for(Product::Tiled sizes, bool adds) {
  std::vector<Product::Tiled> ways;
  for (const auto& [needs_alignment, is_fused] : {std::pair{false, true}, {false, false}, {true, true}, {true, false}}) {
    sizes.needs_alignment = needs_alignment;
    sizes.is_fused = is_fused;
    sizes.part = is_fused ? part_of(sizes.inner) : sizes.inner;
    ways.push_back(sizes);
  }
  if (sizes.inner == 1 && sizes.y_across == 1 && !adds) {
    ways.push_back(sizes);
    ways.back().is_outer = true;
    ways.back().needs_alignment = false;
  }
  return ways;
}

Claim claim_of(const Product::Tiled& way, int num_threads, bool adds) {
  return {"product in tiles",
          c10::ScalarType::Float,
          {way.rows, way.columns, way.inner, way.x_down, way.x_across, way.y_down, way.y_across, num_threads, adds,
           way.needs_alignment, way.is_fused, way.is_outer}};
}

} // namespace

bool may_multiply_in_tiles(Product& product, bool adds, CallBlas call) {
#ifdef GRADC_HAS_TILES
  Product::Tiled& sizes = product.tiled;
  if (!tiles_for(sizes.columns) || product.num_threads != at::get_num_threads() || !is_worth_asking(sizes, product.num_threads)) {
    return false;
  }
  const auto ways = ways_for(sizes, adds);
  const auto way = std::find_if(ways.begin(), ways.end(), [&](const Product::Tiled& way) {
    return prove(claim_of(way, product.num_threads, adds), [&] { return agrees(product, way, adds, call); });
  });
  if (way == ways.end()) {
    return false;
  }
  sizes = *way;
  return true;
#else
  return false;
#endif
}

bool is_tiled_now(const Product& product, const void* out) {
  const bool is_aligned = reinterpret_cast<uintptr_t>(out) % c10::gAlignment == 0;
  return product.num_threads == at::get_num_threads() && (is_aligned || !product.tiled.needs_alignment);
}

void multiply_in_tiles(
    const Product::Tiled& sizes, const float* x, const float* y, const float* addend, int64_t addend_stride, float* out) {
#ifdef GRADC_HAS_TILES
  if (sizes.is_outer) {
    return multiply_outer(sizes, x, y, out);
  }
  const auto multiply = is_narrow(sizes) ? &multiply_narrow : &multiply_part;
  for (int64_t begin = 0; begin < sizes.inner; begin += sizes.part) {
    Product::Tiled of_part = sizes;
    of_part.inner = std::min(sizes.part, sizes.inner - begin);
    multiply(of_part, x + begin * sizes.x_across, y + begin * sizes.y_down, addend, addend_stride, out);
    addend = out;
    addend_stride = sizes.columns;
  }
#endif
}

} // namespace gradc
