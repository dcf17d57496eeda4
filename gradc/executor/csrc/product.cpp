#include "executor/csrc/product.h"

#include "csrc/torch_internals.h"
#include "executor/csrc/direct.h"
#include "executor/csrc/memory.h"
#include "executor/csrc/tiled_product.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>

#include <cstring>
#include <limits>
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
void call_mm(const Step& step, void* out, const void* const* inputs) {
  multiply<T>(step.product, inputs[0], inputs[1], 0, out);
}

void call_blas(const Product& product, const float* x, const float* y, float beta, float* out) {
  multiply<float>(product, x, y, beta, out);
}

void call_tiled_mm(const Step& step, void* out, const void* const* inputs) {
  if (!is_tiled_now(step.product, out)) {
    return call_mm<float>(step, out, inputs);
  }
  const auto at = [inputs](size_t position) { return static_cast<const float*>(inputs[position]); };
  multiply_in_tiles(step.product.tiled, at(0), at(1), nullptr, 0, static_cast<float*>(out));
}

// The addend is a row, repeated, or a whole matrix.
template <class T, bool is_row>
void call_addmm(const Step& step, void* out, const void* const* inputs) {
  const auto* addend = static_cast<const T*>(inputs[0]);
  const bool changes_places = step.product.changes_places;
  const int64_t rows = changes_places ? step.product.n : step.product.m, columns = changes_places ? step.product.m : step.product.n;
  for (int64_t row = 0; row < rows; ++row) {
    std::memcpy(static_cast<T*>(out) + row * columns, is_row ? addend : addend + row * columns, columns * sizeof(T));
  }
  multiply<T>(step.product, inputs[1], inputs[2], 1, out);
}

template <bool is_row>
void call_tiled_addmm(const Step& step, void* out, const void* const* inputs) {
  if (!is_tiled_now(step.product, out)) {
    return call_addmm<float, is_row>(step, out, inputs);
  }
  const auto at = [inputs](size_t position) { return static_cast<const float*>(inputs[position]); };
  const int64_t stride = is_row ? 0 : step.product.tiled.columns;
  multiply_in_tiles(step.product.tiled, at(1), at(2), at(0), stride, static_cast<float*>(out));
}

template <class T>
Direct mm_of(Step& step) {
  if (std::is_same_v<T, float> && may_multiply_in_tiles(step.product, /*adds=*/false, &call_blas)) {
    return &call_tiled_mm;
  }
  return &call_mm<T>;
}

template <class T>
Direct addmm_of(const Plan& plan, Step& step) {
  if (std::is_same_v<T, float> && may_multiply_in_tiles(step.product, /*adds=*/true, &call_blas)) {
    return plan.metas[step.operands[0].index]->sizes.size() == 1 ? &call_tiled_addmm<true> : &call_tiled_addmm<false>;
  }
  return plan.metas[step.operands[0].index]->sizes.size() == 1 ? &call_addmm<T, true> : &call_addmm<T, false>;
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
bool prepare(const Plan& plan, Step& step, const Operand& x, const Operand& y) {
  const auto& result = plan.metas[step.outs[0]];
  const Meta* left = result ? matrix_at(plan, x, result->dtype) : nullptr;
  const Meta* right = left ? matrix_at(plan, y, result->dtype) : nullptr;
  if (!right || result->sizes.size() != 2 || !has_plain_strides(*result)) {
    return false;
  }
  Product& product = step.product;
  const bool turned = product.changes_places = result->sizes[1] != 1;
  const Meta &a = turned ? *right : *left, &b = turned ? *left : *right;
  const int64_t m = result->sizes[turned ? 1 : 0], n = result->sizes[turned ? 0 : 1], k = left->sizes[1];
  product.m = static_cast<int>(m);
  product.n = static_cast<int>(n);
  product.k = static_cast<int>(k);
  product.ldc = product.m;
  product.tiled = {result->sizes[0], result->sizes[1], k, left->strides[0], left->strides[1], right->strides[0], right->strides[1]};
  product.num_threads = at::get_num_threads();
  return lay_factor(a, turned, m, k, product.transposes_a, product.lda, product.copied_a) &&
      lay_factor(b, turned, k, n, product.transposes_b, product.ldb, product.copied_b);
}

// The addend fits if it is a whole row or matrix of the result's.
bool fits_addend(const Plan& plan, const Step& step) {
  const Operand& operand = step.operands[0];
  if (operand.kind != Operand::Kind::slot || !plan.metas[operand.index]) {
    return false;
  }
  const Meta& addend = *plan.metas[operand.index];
  const Meta& result = *plan.metas[step.outs[0]];
  const bool is_row = addend.sizes.size() == 1 && addend.sizes[0] == result.sizes[1];
  return addend.dtype == result.dtype && has_plain_strides(addend) && (is_row || addend.sizes == result.sizes);
}

} // namespace

bool has_full_precision() {
  using at::Float32Precision;
  const auto precision = at::globalContext().float32Precision(at::Float32Backend::MKLDNN, at::Float32Op::MATMUL);
  return precision != Float32Precision::TF32 && precision != Float32Precision::BF16;
}

Kernel find_product_kernel(const Plan& plan, Step& step, const std::string& op) {
  if (step.outs.size() != 1 || step.outs[0] < 0 || !plan.metas[step.outs[0]]) {
    return nullptr;
  }
  const bool is_float = plan.metas[step.outs[0]]->dtype == c10::ScalarType::Float;
  const bool is_double = plan.metas[step.outs[0]]->dtype == c10::ScalarType::Double;
  if (!(is_float && blas<float>()) && !(is_double && blas<double>())) {
    return nullptr;
  }
  const auto& operands = step.operands;
  step.needs_full_precision = true;
  if (op == "aten::mm" && prepare(plan, step, operands[0], operands[1])) {
    return call_directly(step, is_float ? mm_of<float>(step) : mm_of<double>(step), {0, 1});
  }
  if (op == "aten::addmm" && is_one(plan, operands[3]) && is_one(plan, operands[4]) &&
      prepare(plan, step, operands[1], operands[2]) && fits_addend(plan, step)) {
    return call_directly(step, is_float ? addmm_of<float>(plan, step) : addmm_of<double>(plan, step), {0, 1, 2});
  }
  return nullptr;
}

} // namespace gradc
