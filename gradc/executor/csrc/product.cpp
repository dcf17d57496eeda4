#include "executor/csrc/product.h"

#include "executor/csrc/direct.h"
#include "executor/csrc/memory.h"

#include <ATen/Context.h>

#include <dlfcn.h>

#include <cstring>
#include <limits>

namespace gradc {
namespace {

// BLAS by its Fortran interface.
template <class T>
using Gemm = void (*)(
    const char* transa, const char* transb, const int* m, const int* n, const int* k, const T* alpha, const T* a,
    const int* lda, const T* b, const int* ldb, const T* beta, T* c, const int* ldc);

// The one in torch's own library; null if torch was built with another interface.
template <class T>
Gemm<T> blas() {
  static const Gemm<T> found = [] {
    void* library = dlopen("libtorch_cpu.so", RTLD_LAZY | RTLD_NOLOAD);
    void* symbol = library ? dlsym(library, std::is_same_v<T, float> ? "sgemm_" : "dgemm_") : nullptr;
    return reinterpret_cast<Gemm<T>>(symbol);
  }();
  return found;
}

template <class T>
void multiply(const Product& product, const void* a, const void* b, T beta, void* c) {
  const char transa = product.transposes_a ? 't' : 'n', transb = product.transposes_b ? 't' : 'n';
  const T alpha = 1;
  blas<T>()(
      &transa, &transb, &product.m, &product.n, &product.k, &alpha, static_cast<const T*>(a), &product.lda,
      static_cast<const T*>(b), &product.ldb, &beta, static_cast<T*>(c), &product.ldc);
}

// Of a result x y: see prepare().
template <class T>
void call_mm(const Step& step, void* out, const void* const* inputs) {
  multiply<T>(step.product, inputs[1], inputs[0], 0, out);
}

// The addend is a row, repeated, or a whole matrix.
template <class T, bool is_row>
void call_addmm(const Step& step, void* out, const void* const* inputs) {
  const auto* addend = static_cast<const T*>(inputs[0]);
  const int64_t rows = step.product.n, columns = step.product.m;
  for (int64_t row = 0; row < rows; ++row) {
    std::memcpy(static_cast<T*>(out) + row * columns, is_row ? addend : addend + row * columns, columns * sizeof(T));
  }
  multiply<T>(step.product, inputs[2], inputs[1], 1, out);
}

template <class T>
Direct addmm_of(const Plan& plan, const Step& step) {
  return plan.metas[step.operands[0].index]->sizes.size() == 1 ? &call_addmm<T, true> : &call_addmm<T, false>;
}

bool is_one(const Plan& plan, const Operand& operand) {
  if (operand.kind != Operand::Kind::constant) {
    return false;
  }
  const auto& boxed = plan.constants[operand.index].boxed;
  return boxed.isScalar() && !boxed.toScalar().isComplex() && boxed.toScalar().toDouble() == 1;
}

// A matrix without dimensions of size 1, whose strides say nothing.
const Meta* matrix_at(const Plan& plan, const Operand& operand, c10::ScalarType dtype) {
  const Meta* meta = meta_at(plan, operand);
  return meta && meta->dtype == dtype && meta->sizes.size() == 2 && meta->sizes[0] > 1 && meta->sizes[1] > 1 ? meta : nullptr;
}

bool is_row_major(const Meta& meta) {
  return meta.sizes.size() == 2 ? meta.strides[1] == 1 && meta.strides[0] == meta.sizes[1]
                                : meta.sizes.size() == 1 && meta.strides[0] == 1;
}

// How BLAS takes a factor of a product whose result is row-major: transposed (that is, as its memory lies) if its rows are
// contiguous, else as it is. False if neither.
bool lay_factor(const Meta& meta, bool& transposes, int& leading) {
  transposes = meta.strides[1] != 1 || meta.strides[0] < meta.sizes[1];
  if (transposes && (meta.strides[0] != 1 || meta.strides[1] < meta.sizes[0])) {
    return false;
  }
  const int64_t stride = meta.strides[transposes ? 1 : 0];
  leading = static_cast<int>(stride);
  return stride <= std::numeric_limits<int>::max();
}

// A row-major c = x y is, column-major, c' = y' x': the factors change places.
bool prepare(const Plan& plan, Step& step, const Operand& x, const Operand& y) {
  const auto& result = plan.metas[step.outs[0]];
  const Meta* left = result ? matrix_at(plan, x, result->dtype) : nullptr;
  const Meta* right = left ? matrix_at(plan, y, result->dtype) : nullptr;
  if (!right || !is_row_major(*result) || result->sizes.size() != 2) {
    return false;
  }
  Product& product = step.product;
  product.m = static_cast<int>(result->sizes[1]);
  product.n = static_cast<int>(result->sizes[0]);
  product.k = static_cast<int>(left->sizes[1]);
  product.ldc = product.m;
  return lay_factor(*right, product.transposes_a, product.lda) && lay_factor(*left, product.transposes_b, product.ldb);
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
  return addend.dtype == result.dtype && is_row_major(addend) && (is_row || addend.sizes == result.sizes);
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
    return call_directly(step, is_float ? &call_mm<float> : &call_mm<double>, {0, 1});
  }
  if (op == "aten::addmm" && is_one(plan, operands[3]) && is_one(plan, operands[4]) &&
      prepare(plan, step, operands[1], operands[2]) && fits_addend(plan, step)) {
    return call_directly(step, is_float ? addmm_of<float>(plan, step) : addmm_of<double>(plan, step), {0, 1, 2});
  }
  return nullptr;
}

} // namespace gradc
