#include "executor/cpu/csrc/bfloat16_tiles.h"

#include "executor/cpu/csrc/loops.h"

#include <ATen/Parallel.h>
#include <ATen/Version.h>

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#ifdef GRADC_HAS_TILES
#include <immintrin.h>
#endif

namespace gradc {
namespace {

#ifdef GRADC_HAS_TILES
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wuninitialized" // of undefined registers in GCC 12's own header
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#define GRADC_512 [[gnu::target("avx512f,avx512bw,avx512vl")]]

constexpr int64_t lanes = 16, tile_rows = 14, tile_columns = 2 * lanes;
constexpr int64_t panel_inner = 256; // that are laid out at once: a panel of y stays in the first cache,
constexpr int64_t block_rows = 16 * tile_rows, block_columns = 8 * tile_columns; // and a block in the second
constexpr int64_t fewest_block_rows = 2 * tile_rows, fewest_block_columns = 2 * tile_columns; // of a block made for one more thread
constexpr unsigned flushing = 0x8040; // of the control register: denormals are read as 0, and made 0

int64_t parts_of(int64_t size, int64_t most) {
  return (size + most - 1) / most;
}

int64_t rounded_up(int64_t size, int64_t step) {
  return parts_of(size, step) * step;
}

// Sixteen rows of sixteen numbers, as columns.
GRADC_512 void turn_sixteen(__m512i (&rows)[lanes]) {
  __m512i turned[lanes];
  for (int i = 0; i < 16; i += 2) {
    turned[i] = _mm512_unpacklo_epi32(rows[i], rows[i + 1]);
    turned[i + 1] = _mm512_unpackhi_epi32(rows[i], rows[i + 1]);
  }
  for (int i = 0; i < 16; i += 4) {
    rows[i] = _mm512_unpacklo_epi64(turned[i], turned[i + 2]);
    rows[i + 1] = _mm512_unpackhi_epi64(turned[i], turned[i + 2]);
    rows[i + 2] = _mm512_unpacklo_epi64(turned[i + 1], turned[i + 3]);
    rows[i + 3] = _mm512_unpackhi_epi64(turned[i + 1], turned[i + 3]);
  }
  for (int i = 0; i < 4; ++i) {
    turned[i] = _mm512_shuffle_i32x4(rows[i], rows[i + 4], 0x88);
    turned[i + 4] = _mm512_shuffle_i32x4(rows[i], rows[i + 4], 0xDD);
    turned[i + 8] = _mm512_shuffle_i32x4(rows[i + 8], rows[i + 12], 0x88);
    turned[i + 12] = _mm512_shuffle_i32x4(rows[i + 8], rows[i + 12], 0xDD);
  }
  for (int i = 0; i < 8; ++i) {
    rows[i] = _mm512_shuffle_i32x4(turned[i], turned[i + 8], 0x88);
    rows[i + 8] = _mm512_shuffle_i32x4(turned[i], turned[i + 8], 0xDD);
  }
}

// Rows of x, or columns of y, up to sixteen: each has its numbers `across` apart, and the next begins `down` behind.
struct Strip {
  const uint16_t* from;
  int64_t down, across, count;
};

// So many numbers of each, as float32, pairs in the order in which they are added: all those at one place side by side, `out_down` from the
// next. What is missing is 0.
GRADC_512 void lay_along(const Strip& strip, int64_t inner, float* out, int64_t out_down) {
  const __m512i odd = _mm512_set1_epi32(static_cast<int>(0xFFFF0000));
  for (int64_t p = 0; p < inner; p += 2 * lanes) {
    const int64_t left = std::min(2 * lanes, inner - p);
    const auto mask = static_cast<__mmask32>((uint64_t{1} << left) - 1);
    __m512i pairs[lanes];
    for (int64_t i = 0; i < lanes; ++i) {
      pairs[i] = i < strip.count ? _mm512_maskz_loadu_epi16(mask, strip.from + i * strip.down + p) : _mm512_setzero_si512();
    }
    turn_sixteen(pairs);
    for (int64_t i = 0; 2 * i < left; ++i, out += 2 * out_down) {
      _mm512_storeu_si512(out, _mm512_and_si512(pairs[i], odd));
      _mm512_storeu_si512(out + out_down, _mm512_slli_epi32(pairs[i], 16));
    }
  }
}

// The same, where the numbers at one place already lie side by side.
GRADC_512 void lay_across(const Strip& strip, int64_t inner, float* out, int64_t out_down) {
  const auto mask = static_cast<__mmask16>((1U << strip.count) - 1);
  for (int64_t p = 0; p < inner; p += 2, out += 2 * out_down) {
    const uint16_t* even = strip.from + p * strip.across;
    const __mmask16 of_odd = p + 1 < inner ? mask : 0;
    const __m256i at_odd = _mm256_maskz_loadu_epi16(of_odd, of_odd ? even + strip.across : even);
    _mm512_storeu_si512(out, _mm512_slli_epi32(_mm512_cvtepu16_epi32(at_odd), 16));
    _mm512_storeu_si512(out + out_down, _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, even)), 16));
  }
}

void lay_out(const Strip& strip, int64_t inner, float* out, int64_t out_down) {
  strip.across == 1 ? lay_along(strip, inner, out, out_down) : lay_across(strip, inner, out, out_down);
}

// Goes on with the chains in `sums`, or begins them.
template <int num_rows>
GRADC_512 void add_tile(const float* x, const float* y, int64_t inner, bool begins, float* sums) {
  __m512 left[num_rows], right[num_rows];
#pragma GCC unroll 14
  for (int row = 0; row < num_rows; ++row) {
    left[row] = begins ? _mm512_setzero_ps() : _mm512_loadu_ps(sums + row * block_columns);
    right[row] = begins ? _mm512_setzero_ps() : _mm512_loadu_ps(sums + row * block_columns + lanes);
  }
  for (int64_t p = 0; p < inner; ++p, x += lanes, y += tile_columns) {
    const __m512 left_of_y = _mm512_loadu_ps(y), right_of_y = _mm512_loadu_ps(y + lanes);
#pragma GCC unroll 14
    for (int row = 0; row < num_rows; ++row) {
      const __m512 of_x = _mm512_set1_ps(x[row]);
      left[row] = _mm512_fmadd_ps(of_x, left_of_y, left[row]);
      right[row] = _mm512_fmadd_ps(of_x, right_of_y, right[row]);
    }
  }
#pragma GCC unroll 14
  for (int row = 0; row < num_rows; ++row) {
    _mm512_storeu_ps(sums + row * block_columns, left[row]);
    _mm512_storeu_ps(sums + row * block_columns + lanes, right[row]);
  }
}

using AddTile = void (*)(const float* x, const float* y, int64_t inner, bool begins, float* sums);

template <int... rows>
constexpr std::array<AddTile, sizeof...(rows)> tiles_of(std::integer_sequence<int, rows...>) {
  return {&add_tile<rows + 1>...};
}

// By rows - 1.
constexpr auto add_tiles = tiles_of(std::make_integer_sequence<int, tile_rows>());

GRADC_512 void add_row(const float* in, float* out, int64_t size, bool begins) {
  for (int64_t i = 0; i < size; i += lanes) { // the rows of a block have room for whole registers
    const __m512 number = _mm512_loadu_ps(in + i);
    _mm512_storeu_ps(out + i, begins ? number : _mm512_add_ps(_mm512_loadu_ps(out + i), number));
  }
}

// To the nearest bfloat16, of two to the even one. `addend` may be null.
GRADC_512 void round_row(const float* in, const uint16_t* addend, uint16_t* out, int64_t size, bool flushes) {
  for (int64_t i = 0; i < size; i += lanes) {
    const auto mask = static_cast<__mmask16>((uint64_t{1} << std::min(lanes, size - i)) - 1);
    __m512 sum = _mm512_loadu_ps(in + i);
    if (addend) {
      const __m512i of_addend = _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, addend + i)), 16);
      sum = _mm512_add_ps(sum, _mm512_castsi512_ps(of_addend));
    }
    __m512i bits = _mm512_castps_si512(sum);
    if (flushes) {
      const __mmask16 is_denormal = _mm512_testn_epi32_mask(bits, _mm512_set1_epi32(0x7F800000));
      bits = _mm512_mask_and_epi32(bits, is_denormal, bits, _mm512_set1_epi32(static_cast<int>(0x80000000)));
    }
    const __m512i is_odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const __m512i rounded = _mm512_add_epi32(bits, _mm512_add_epi32(is_odd, _mm512_set1_epi32(0x7FFF)));
    const __mmask16 is_nan = _mm512_cmp_ps_mask(sum, sum, _CMP_UNORD_Q);
    const __m512i high = _mm512_mask_mov_epi32(_mm512_srli_epi32(rounded, 16), is_nan, _mm512_set1_epi32(0x7FC0));
    _mm256_mask_storeu_epi16(out + i, mask, _mm512_cvtepi32_epi16(high));
  }
}

// The control register, as the chains need it.
class Flushing {
 public:
  explicit Flushing(bool flushes) : before_(_mm_getcsr()) {
    _mm_setcsr(flushes ? before_ | flushing : before_);
  }
  ~Flushing() {
    _mm_setcsr(before_);
  }
  Flushing(const Flushing&) = delete;
  Flushing& operator=(const Flushing&) = delete;

 private:
  const unsigned before_;
};

// Memory for so many numbers, of which registers are filled at once.
class Scratch {
 public:
  explicit Scratch(int64_t size) : registers_(parts_of(size, lanes)) {}

  float* data() {
    return registers_.front().data();
  }

 private:
  struct alignas(64) Register : std::array<float, lanes> {};
  std::vector<Register> registers_;
};

// What a thread works with: panels of both factors, the chains of a block, and the sum of those that have ended.
struct Bench {
  Scratch x{block_rows / tile_rows * lanes * panel_inner};
  Scratch y{block_columns * panel_inner};
  Scratch chains{block_rows * block_columns};
  Scratch sums{block_rows * block_columns};
};

// The block whose first element stands in `row` and `column`.
struct Block {
  int64_t row, column, rows, columns;
};

void lay_panels(const Bfloat16Product& sizes, const Block& block, const uint16_t* x, const uint16_t* y, int64_t inner, Bench& bench) {
  const int64_t panel_of_x = lanes * panel_inner, panel_of_y = tile_columns * panel_inner;
  for (int64_t row = 0; row < block.rows; row += tile_rows) {
    const Strip strip{x + (block.row + row) * sizes.x_down, sizes.x_down, sizes.x_across, std::min(tile_rows, block.rows - row)};
    lay_out(strip, inner, bench.x.data() + row / tile_rows * panel_of_x, lanes);
  }
  for (int64_t column = 0; column < rounded_up(block.columns, tile_columns); column += lanes) {
    const int64_t count = std::clamp(block.columns - column, int64_t{0}, lanes);
    const Strip strip{y + (block.column + column) * sizes.y_across, sizes.y_across, sizes.y_down, count};
    lay_out(strip, inner, bench.y.data() + column / tile_columns * panel_of_y + column % tile_columns, tile_columns);
  }
}

void add_tiles_of(const Block& block, int64_t inner, bool begins, bool flushes, Bench& bench) {
  const Flushing flushing_now(flushes);
  for (int64_t column = 0; column < block.columns; column += tile_columns) {
    for (int64_t row = 0; row < block.rows; row += tile_rows) {
      add_tiles[std::min(tile_rows, block.rows - row) - 1](
          bench.x.data() + row / tile_rows * lanes * panel_inner, bench.y.data() + column * panel_inner, inner, begins,
          bench.chains.data() + row * block_columns + column);
    }
  }
}

void multiply_block(
    const Bfloat16Product& sizes, const Block& block, const uint16_t* x, const uint16_t* y, const uint16_t* addend, int64_t addend_stride,
    uint16_t* out) {
  thread_local Bench bench;
  const bool has_parts = sizes.part < sizes.inner;
  for (int64_t begin = 0; begin < sizes.inner; begin += sizes.part) {
    const int64_t end = std::min(begin + sizes.part, sizes.inner);
    for (int64_t p = begin; p < end; p += panel_inner) {
      const int64_t inner = std::min(panel_inner, end - p);
      lay_panels(sizes, block, x + p * sizes.x_across, y + p * sizes.y_down, inner, bench);
      add_tiles_of(block, rounded_up(inner, 2), p == begin, sizes.flushes, bench);
    }
    for (int64_t row = 0; has_parts && row < block.rows; ++row) {
      add_row(bench.chains.data() + row * block_columns, bench.sums.data() + row * block_columns, block.columns, begin == 0);
    }
  }
  const float* results = has_parts ? bench.sums.data() : bench.chains.data();
  for (int64_t row = 0; row < block.rows; ++row) {
    const uint16_t* added = addend ? addend + (block.row + row) * addend_stride + block.column : nullptr;
    uint16_t* rounded = out + (block.row + row) * sizes.columns + block.column;
    round_row(results + row * block_columns, added, rounded, block.columns, sizes.flushes);
  }
}

// Into how many blocks the rows and the columns go: as many for each thread, if they are not too small then.
std::pair<int64_t, int64_t> blocks_for(const Bfloat16Product& sizes, int64_t num_threads) {
  int64_t down = parts_of(sizes.rows, block_rows), across = parts_of(sizes.columns, block_columns);
  const auto is_even = [&] { return down * across % num_threads == 0; };
  while (!is_even() && sizes.columns / (across + 1) >= fewest_block_columns) {
    ++across;
  }
  while (!is_even() && sizes.rows / (down + 1) >= fewest_block_rows) {
    ++down;
  }
  return {down, across};
}

#pragma GCC diagnostic pop
#endif

} // namespace

bool has_bfloat16_tiles() {
#ifdef GRADC_HAS_TILES
  static const bool has = at::get_cpu_capability() == "AVX512";
  return has;
#else
  return false;
#endif
}

bool flushes_denormals() {
#ifdef GRADC_HAS_TILES
  return (_mm_getcsr() & flushing) != 0;
#else
  return false;
#endif
}

void multiply_bfloat16(
    const Bfloat16Product& sizes, const c10::BFloat16* x, const c10::BFloat16* y, const c10::BFloat16* addend, int64_t addend_stride,
    c10::BFloat16* out) {
#ifdef GRADC_HAS_TILES
  const auto bits = [](const c10::BFloat16* numbers) { return reinterpret_cast<const uint16_t*>(numbers); };
  const auto [down, across] = blocks_for(sizes, at::get_num_threads());
  const int64_t rows = rounded_up(parts_of(sizes.rows, down), tile_rows), columns = rounded_up(parts_of(sizes.columns, across), tile_columns);
  const int64_t num_across = parts_of(sizes.columns, columns);
  at::parallel_for(0, parts_of(sizes.rows, rows) * num_across, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t row = i / num_across * rows, column = i % num_across * columns;
      const Block block{row, column, std::min(rows, sizes.rows - row), std::min(columns, sizes.columns - column)};
      multiply_block(sizes, block, bits(x), bits(y), bits(addend), addend_stride, reinterpret_cast<uint16_t*>(out));
    }
  });
#endif
}

} // namespace gradc
