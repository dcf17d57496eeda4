// What the exact call of a step (plan.h) knows of it: numbers that were read off sizes, strides and constants when the plan was made.
// One struct for each family of kernels.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <variant>
#include <vector>

namespace gradc {

using Index = int32_t;

// A loop over so many elements (cpu/csrc/loops.h).
using Loop = void (*)(void* out, const void* const* inputs, int64_t size);

// A matrix product as BLAS takes it: column-major, c = op(a) op(b) + beta c. `changes_places`: the operands are b and a. `copied_a` are
// the sizes and strides of one that is copied first, as ATen copies it; of one that is not, `rows` is 0.
struct Product {
  struct Copied {
    int64_t rows = 0, columns = 0, row_stride = 0, column_stride = 0;
  };
  // The same as it stands, x y: sizes, and strides of the factors. So much of the inner dimension, `part`, is one chain of additions,
  // fused with the multiplications or not (cpu/csrc/tiled_product.h). `needs_alignment`: only where the result begins as a tensor's memory does.
  // `is_outer`: of columns and rows of one number each, and nothing is added, not even 0.
  struct Tiled {
    int64_t rows = 0, columns = 0, inner = 0, x_down = 0, x_across = 0, y_down = 0, y_across = 0, part = 0;
    bool is_fused = true, needs_alignment = false, is_outer = false;
  };
  Tiled tiled;
  int num_threads = 0; // with which BLAS makes it so
  bool transposes_a = false, transposes_b = false, changes_places = false;
  int m = 0, n = 0, k = 0, lda = 0, ldb = 0, ldc = 0;
  Copied copied_a, copied_b;
};

// A product of bfloat16 matrices, x y: sizes, and strides of the factors. So much of the inner dimension, `part`, is one chain of fused
// float32 multiply-adds; `flushes`: in which denormals are 0 (cpu/csrc/bfloat16_product.h).
struct Bfloat16Product {
  int64_t rows = 0, columns = 0, inner = 0, x_down = 0, x_across = 0, y_down = 0, y_across = 0, part = 0;
  bool flushes = true;
  bool is_deterministic = false; // as oneDNN was told to be
  int num_threads = 0; // with which oneDNN makes it so
};

// A pointwise op as one loop over memory (cpu/csrc/loops.h). An input is laid out as the result, or spread over `sizes` by `strides`, or
// it is the bytes of a number. `element_size` counts bytes; it is 0 for a number. `row_size` is that of the rows by which inputs that lie
// apart are read; 0 where they have none, or all lie as the result.
struct Pointwise {
  struct Input {
    size_t element_size = 0;
    std::vector<int64_t> sizes, strides;
    std::array<std::byte, sizeof(double)> number{};
  };
  Loop loop = nullptr;
  std::vector<Input> inputs;
  int64_t size = 0;
  size_t element_size = 0; // of the result
  int64_t row_size = 0;
};

// A matrix whose columns are summed, or of whose one row all is.
struct Summed {
  int64_t rows = 0, columns = 0;
};

// A matrix over whose rows log_softmax goes.
struct Classes {
  int64_t rows = 0, columns = 0;
};

// So many times the one number, which is the bytes of an element.
struct Filled {
  std::array<std::byte, sizeof(double)> number{};
  int64_t size = 0;
};

// Rows of a table, by their numbers: `size` elements side by side, every `stride` elements. `added` is what is added to them.
struct Rows {
  Index table = 0, numbers = 0, added = -1;
  int64_t num_rows = 0, stride = 0, size = 0, count = 0;
  bool may_count_from_end = false;
};

// Numbers in rows of `length`, `count` of each by their places in it. `added` is what is added to them.
struct Picks {
  Index table = 0, places = 0, added = -1;
  int64_t rows = 0, length = 0, count = 0;
};

// What is put one behind the other, `count` times: so many bytes of each tensor.
struct Parts {
  int64_t count = 0;
  std::vector<size_t> bytes;
};

// Zeros with blocks of `bytes` in them: `length` of them, `step` bytes apart from `start` on, in each of `count` parts of `part` bytes.
// The blocks lie side by side; or, where `is_one`, it is always the same one.
struct Padded {
  int64_t count = 0, length = 0;
  size_t part = 0, start = 0, step = 0, bytes = 0;
  bool is_one = false;
};

// The gradient of a cross entropy, before log_softmax: rows of `columns` classes, in each of `num_parts` `length` rows, from `start` on
// among `part` rows, of which the others are zeros. A target of `ignored` counts for nothing.
struct CrossEntropy {
  int64_t columns = 0, num_parts = 1, length = 0, part = 0, start = 0, ignored = 0;
  bool is_mean = false;
  bool is_fused = false; // a multiplication with the subtraction behind it
};

class Iterated; // (cpu/csrc/iterated.h)
struct Convolution; // (cpu/csrc/convolution.cpp)
struct OnednnProduct; // (cpu/csrc/onednn_product.cpp)

using Payload = std::variant<
    std::monostate, Product, Bfloat16Product, Pointwise, Summed, Classes, Filled, Rows, Picks, Parts, Padded, CrossEntropy,
    std::shared_ptr<const Iterated>, std::shared_ptr<const Convolution>,
    std::shared_ptr<const OnednnProduct>>;

// That of a call of the family, which put it there.
template <class Family>
const Family& payload_as(const Payload& payload) {
  return *std::get_if<Family>(&payload);
}

} // namespace gradc
