#include "executor/cpu/csrc/product.h"

#include "csrc/torch_internals.h"
#include "executor/cpu/csrc/direct.h"
#include "executor/cpu/csrc/memory.h"
#include "executor/cpu/csrc/tiled_product.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>

#include <cstring>
#include <initializer_list>
#include <limits>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

namespace gradc {
namespace {

constexpr int64_t most_copied = 16384; // elements of a factor: beyond, ATen may copy in several threads

// BLAS by its Fortran interface.
template <class T>
using Gemm = void (*)(
    const char* transa, const char* transb, const int* m, const int* n, const int* k, const T* alpha, const T* a,
    const int* lda, const T* b, const int* ldb, const T* beta, T* c, const int* ldc);

// The one in torch's own library; null if torch was built with another interface.
template <class T>
Gemm<T> blas() {
  static const auto found = reinterpret_cast<Gemm<T>>(function_of_torchs_libraries(std::is_same_v<T, float> ? "sgemm_" : "dgemm_"));
  return found;
}

// What ATen makes of a factor that BLAS cannot read where it lies: its rows, one behind the other.
template <class T>
const T* copied(const Product::Copied& factor, const void* from, std::vector<T>& memory) {
  if (!factor.rows) {
    return static_cast<const T*>(from);
  }
  memory.resize(factor.rows * factor.columns);
  T* out = memory.data();
  for (int64_t row = 0; row < factor.rows; ++row) {
    const T* in = static_cast<const T*>(from) + row * factor.row_stride;
    for (int64_t column = 0; column < factor.columns; ++column) {
      *out++ = in[column * factor.column_stride];
    }
  }
  return memory.data();
}

template <class T>
void multiply(const Product& product, const void* x, const void* y, T beta, void* c) {
  thread_local std::vector<T> memory_a, memory_b;
  const T* a = copied(product.copied_a, product.changes_places ? y : x, memory_a);
  const T* b = copied(product.copied_b, product.changes_places ? x : y, memory_b);
  const char transa = product.transposes_a ? 't' : 'n', transb = product.transposes_b ? 't' : 'n';
  const T alpha = 1;
  blas<T>()(
      &transa, &transb, &product.m, &product.n, &product.k, &alpha, a, &product.lda, b, &product.ldb, &beta, static_cast<T*>(c),
      &product.ldc);
}

// Of a result x y: see prepare().
template <class T>
void call_mm(const Payload& payload, void* out, const void* const* inputs) {
  multiply<T>(payload_as<Product>(payload), inputs[0], inputs[1], 0, out);
}

void call_blas(const Product& product, const float* x, const float* y, float beta, float* out) {
  multiply<float>(product, x, y, beta, out);
}

void call_tiled_mm(const Payload& payload, void* out, const void* const* inputs) {
  const auto& product = payload_as<Product>(payload);
  if (!is_tiled_now(product, out)) {
    return call_mm<float>(payload, out, inputs);
  }
  const auto at = [inputs](size_t position) { return static_cast<const float*>(inputs[position]); };
  multiply_in_tiles(product.tiled, at(0), at(1), nullptr, 0, static_cast<float*>(out));
}

// The addend is a row, repeated, or a whole matrix.
template <class T, bool is_row>
void call_addmm(const Payload& payload, void* out, const void* const* inputs) {
  const auto& product = payload_as<Product>(payload);
  const int64_t rows = product.changes_places ? product.n : product.m, columns = product.changes_places ? product.m : product.n;
  const size_t row_bytes = columns * sizeof(T);
  const auto* from = static_cast<const std::byte*>(inputs[0]);
  auto* to = static_cast<std::byte*>(out);
  at::parallel_for(0, rows, static_cast<int64_t>(most_moved_bytes / row_bytes) + 1, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      copy_bytes(to + row * row_bytes, is_row ? from : from + row * row_bytes, row_bytes);
    }
  });
  multiply<T>(product, inputs[1], inputs[2], 1, out);
}

template <bool is_row>
void call_tiled_addmm(const Payload& payload, void* out, const void* const* inputs) {
  const auto& product = payload_as<Product>(payload);
  if (!is_tiled_now(product, out)) {
    return call_addmm<float, is_row>(payload, out, inputs);
  }
  const auto at = [inputs](size_t position) { return static_cast<const float*>(inputs[position]); };
  const int64_t stride = is_row ? 0 : product.tiled.columns;
  multiply_in_tiles(product.tiled, at(1), at(2), at(0), stride, static_cast<float*>(out));
}

// These note in the product how it is made in tiles, if it is.
template <class T>
Direct mm_of(Product& product) {
  const bool is_tiled = std::is_same_v<T, float> && may_multiply_in_tiles(product, /*adds=*/false, &call_blas);
  return is_tiled ? &call_tiled_mm : &call_mm<T>;
}

template <class T, bool is_row>
Direct addmm_of(Product& product) {
  const bool is_tiled = std::is_same_v<T, float> && may_multiply_in_tiles(product, /*adds=*/true, &call_blas);
  return is_tiled ? &call_tiled_addmm<is_row> : &call_addmm<T, is_row>;
}

bool is_one(const Plan& plan, const Operand& operand) {
  if (operand.kind != Operand::Kind::constant) {
    return false;
  }
  const auto& boxed = plan.constants[operand.index].boxed;
  return boxed.isScalar() && !boxed.toScalar().isComplex() && boxed.toScalar().toDouble() == 1;
}

const Meta* matrix_at(const Plan& plan, const Operand& operand, c10::ScalarType dtype) {
  const Meta* meta = meta_at(plan, operand);
  return meta && meta->dtype == dtype && meta->sizes.size() == 2 && meta->sizes[0] > 0 && meta->sizes[1] > 0 ? meta : nullptr;
}

// How BLAS takes one of the factors of a column-major product, op(factor), whose op is to have `rows` and `columns`. `is_turned`: the
// factor is a transpose of the operand that `meta` is of.
bool lay_factor(
    const Meta& meta, bool is_turned, int64_t rows, int64_t columns, bool& transposes, int& leading, Product::Copied& copied) {
  const int64_t down = meta.strides[is_turned ? 1 : 0], across = meta.strides[is_turned ? 0 : 1];
  int64_t stride = 0;
  if (down == 1 && across >= rows) {
    transposes = false;
    stride = across;
  } else if (across == 1 && down >= columns) {
    transposes = true;
    stride = down;
  } else if (meta.sizes[0] * meta.sizes[1] <= most_copied) {
    transposes = !is_turned;
    stride = meta.sizes[1];
    copied = {meta.sizes[0], meta.sizes[1], meta.strides[0], meta.strides[1]};
  } else {
    return false;
  }
  // BLAS asks for no more than the size where there is one column; ATen sees to that as well.
  const bool is_single = transposes ? rows == 1 : columns == 1;
  leading = static_cast<int>(is_single ? (transposes ? columns : rows) : stride);
  return stride <= std::numeric_limits<int>::max();
}

// ATen takes the result c = x y as column-major if its columns are contiguous, as a single one is. Otherwise it is c' = y' x', and
// the factors change places.
std::optional<Product> prepare(const Plan& plan, const Meta& result, const Operand& x, const Operand& y) {
  const Meta* left = matrix_at(plan, x, result.dtype);
  const Meta* right = left ? matrix_at(plan, y, result.dtype) : nullptr;
  if (!right || result.sizes.size() != 2 || !has_plain_strides(result)) {
    return {};
  }
  Product product;
  const bool turned = product.changes_places = result.sizes[1] != 1;
  const Meta &a = turned ? *right : *left, &b = turned ? *left : *right;
  const int64_t m = result.sizes[turned ? 1 : 0], n = result.sizes[turned ? 0 : 1], k = left->sizes[1];
  product.m = static_cast<int>(m);
  product.n = static_cast<int>(n);
  product.k = static_cast<int>(k);
  product.ldc = product.m;
  product.tiled = {result.sizes[0], result.sizes[1], k, left->strides[0], left->strides[1], right->strides[0], right->strides[1]};
  product.num_threads = at::get_num_threads();
  const bool fits = lay_factor(a, turned, m, k, product.transposes_a, product.lda, product.copied_a) &&
      lay_factor(b, turned, k, n, product.transposes_b, product.ldb, product.copied_b);
  return fits ? std::optional(product) : std::nullopt;
}

bool has_blas(c10::ScalarType dtype) {
  return (dtype == c10::ScalarType::Float && blas<float>()) || (dtype == c10::ScalarType::Double && blas<double>());
}

Exact call_product(const Step& step, Direct direct, Product product, std::initializer_list<size_t> positions) {
  Exact exact = call_directly(step, direct, std::move(product), slots_at(step, positions));
  exact.needs_full_precision = true;
  return exact;
}

Exact find_mm(const Plan& plan, const Step& step) {
  const Meta* result = result_meta(plan, step);
  auto product = result && has_blas(result->dtype) ? prepare(plan, *result, step.operands[0], step.operands[1]) : std::nullopt;
  if (!product) {
    return {};
  }
  const Direct direct = result->dtype == c10::ScalarType::Float ? mm_of<float>(*product) : mm_of<double>(*product);
  return call_product(step, direct, std::move(*product), {0, 1});
}

template <class T>
Direct addmm_of(Product& product, bool is_row) {
  return is_row ? addmm_of<T, true>(product) : addmm_of<T, false>(product);
}

Exact find_addmm(const Plan& plan, const Step& step) {
  const Meta* result = result_meta(plan, step);
  const auto addend = addend_of(plan, step);
  if (!addend || !has_blas(result->dtype)) {
    return {};
  }
  auto product = prepare(plan, *result, step.operands[1], step.operands[2]);
  if (!product) {
    return {};
  }
  const bool is_row = *addend == Addend::row, is_float = result->dtype == c10::ScalarType::Float;
  const Direct direct = is_float ? addmm_of<float>(*product, is_row) : addmm_of<double>(*product, is_row);
  return call_product(step, direct, std::move(*product), {0, 1, 2});
}

} // namespace

std::optional<Addend> addend_of(const Plan& plan, const Step& step) {
  const Meta *result = result_meta(plan, step), *addend = meta_at(plan, step.operands[0]);
  if (!result || !addend || addend->dtype != result->dtype || !has_plain_strides(*addend) || !is_one(plan, step.operands[3]) ||
      !is_one(plan, step.operands[4])) {
    return {};
  }
  const bool is_row = addend->sizes.size() == 1 && addend->sizes[0] == result->sizes[1];
  return is_row ? std::optional(Addend::row) : addend->sizes == result->sizes ? std::optional(Addend::matrix) : std::nullopt;
}

bool has_full_precision() {
  using at::Float32Precision;
  const auto precision = at::globalContext().float32Precision(at::Float32Backend::MKLDNN, at::Float32Op::MATMUL);
  return precision != Float32Precision::TF32 && precision != Float32Precision::BF16;
}

std::vector<KernelRow> product_kernels() {
  return {{{"aten::mm"}, &find_mm}, {{"aten::addmm"}, &find_addmm}};
}

} // namespace gradc
