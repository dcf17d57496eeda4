#include "executor/cpu/csrc/onednn_product.h"

#include "executor/cpu/csrc/onednn.h"

#if __has_include(<oneapi/dnnl/dnnl.h>)
#include "executor/core/csrc/kernels.h"
#include "executor/core/csrc/prove.h"
#include "executor/cpu/csrc/direct.h"
#include "executor/cpu/csrc/memory.h"
#include "executor/cpu/csrc/product.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>

#include <algorithm>
#include <array>
#include <utility>

namespace gradc {

// What a step keeps. The addend is put where the product goes, `copies` times, and the product is added to it.
struct OnednnProduct {
  int num_threads = 0;
  size_t addend_bytes = 0, copies = 0;
  std::unique_ptr<const KeptPrimitive> product;
};

namespace {

using c10::ScalarType;

constexpr int64_t most_of_atens_own = 16 * 16 * 16; // multiplications: so many ATen makes without oneDNN

// x y, or their sum with an addend.
struct Factors {
  Meta x, y, result;
  Addend addend = Addend::none;
};

// Numbers side by side in rows or in columns, no two in one place.
bool is_onednns_layout(const Meta& meta) {
  const size_t last = meta.sizes.size() - 1;
  const int64_t rows = meta.sizes[last - 1], columns = meta.sizes[last], down = meta.strides[last - 1], across = meta.strides[last];
  const bool has_rows = across == 1 && down >= columns, has_columns = down == 1 && across >= rows;
  const bool is_batch = last == 1 || meta.strides[0] >= std::max(rows * down, columns * across);
  return (has_rows || has_columns) && is_batch;
}

bool is_factor(const Meta* meta, size_t dimensions) {
  return meta && meta->dtype == ScalarType::BFloat16 && meta->sizes.size() == dimensions &&
      std::all_of(meta->sizes.begin(), meta->sizes.end(), [](int64_t size) { return size > 0; }) && is_onednns_layout(*meta) &&
      meta->sizes[0] * meta->strides[0] <= most_tried_elements;
}

std::shared_ptr<OnednnProduct> kept_product(const Factors& factors, int num_threads) {
  const auto x = memory_laid_out(factors.x.sizes, factors.x.strides, factors.x.dtype);
  const auto y = memory_laid_out(factors.y.sizes, factors.y.strides, factors.y.dtype);
  const auto result = memory_laid_out(factors.result.sizes, factors.result.strides, factors.result.dtype);
  const auto* functions = onednn();
  const auto attributes = factors.addend == Addend::none ? functions->attributes : functions->adding_attributes;
  const auto descriptor = x && y && result ? primitive_descriptor([&](dnnl_primitive_desc_t* made) {
    return functions->matmul_primitive_desc_create(made, functions->engine, x.get(), y.get(), nullptr, result.get(), attributes);
  }) : PrimitiveDescriptor();
  auto kept = std::make_shared<OnednnProduct>();
  kept->num_threads = num_threads;
  const bool is_row = factors.addend == Addend::row;
  kept->copies = factors.addend == Addend::none ? 0 : is_row ? factors.result.sizes[0] : 1;
  kept->addend_bytes = is_row ? factors.result.sizes[1] * sizeof(c10::BFloat16) : num_bytes(factors.result);
  kept->product = keep(
      descriptor,
      {{DNNL_ARG_SRC, dnnl_query_src_md, 0, false, x},
       {DNNL_ARG_WEIGHTS, dnnl_query_weights_md, 0, false, y},
       {DNNL_ARG_DST, dnnl_query_dst_md, 0, true, result}});
  return kept->product ? kept : nullptr;
}

void run_product(const OnednnProduct& kept, const void* addend, const void* x, const void* y, void* result) {
  auto* out = static_cast<std::byte*>(result);
  for (size_t copy = 0; copy < kept.copies; ++copy) {
    copy_bytes(out + copy * kept.addend_bytes, static_cast<const std::byte*>(addend), kept.addend_bytes);
  }
  kept.product->run(std::array{const_cast<void*>(x), const_cast<void*>(y), result});
}

void call_onednn_product(const Step& step, Frame& frame) {
  const auto& kept = *payload_as<std::shared_ptr<const OnednnProduct>>(step.exact.payload);
  if (onednn_threads() != kept.num_threads) {
    return call_as_eager(step, frame);
  }
  const auto at = [&](size_t position) { return memory_at(frame, step.exact.inputs[position]); };
  at::Tensor result = result_memory(step, frame);
  const size_t x = step.exact.inputs.size() - 2; // behind the addend, if there is one
  run_product(kept, x ? at(0) : nullptr, at(x), at(x + 1), result.mutable_data_ptr());
  frame.slots[step.outs[0]] = std::move(result);
}

// One that comes twice in the inner dimension, with the second ones of `y` negative: what is left is what was rounded, and so in which
// order it was added.
void cancel(const at::Tensor& x, const at::Tensor& y) {
  const int64_t half = x.size(-1) / 2;
  x.narrow(-1, half, half).copy_(x.narrow(-1, 0, half));
  y.narrow(-2, half, half).copy_(y.narrow(-2, 0, half).neg());
}

bool is_atens_product(const Factors& factors, const OnednnProduct& kept, bool cancels) {
  auto generator = at::detail::createCPUGenerator(1);
  const auto numbers = [&](const Meta& meta) {
    return at::empty_strided(meta.sizes, meta.strides, at::TensorOptions(meta.dtype)).uniform_(-1, 1, generator);
  };
  const at::Tensor x = numbers(factors.x), y = numbers(factors.y), ours = at::empty(factors.result.sizes, x.options());
  if (cancels) {
    cancel(x, y);
  }
  const bool is_batch = factors.x.sizes.size() == 3, is_row = factors.addend == Addend::row;
  at::Tensor addend, of_aten;
  if (factors.addend == Addend::none) {
    of_aten = is_batch ? at::bmm(x, y) : at::mm(x, y);
  } else {
    const Meta row{ScalarType::BFloat16, {factors.result.sizes[1]}, {1}};
    addend = numbers(is_row ? row : factors.result);
    of_aten = is_batch ? at::baddbmm(addend, x, y) : at::addmm(addend, x, y);
  }
  run_product(
      kept, addend.defined() ? addend.const_data_ptr() : nullptr, x.const_data_ptr(), y.const_data_ptr(), ours.mutable_data_ptr());
  return ours.strides() == of_aten.strides() && have_same_bits(ours, of_aten);
}

Claim claim_of(const Factors& factors, int num_threads) {
  Claim claim{"product by oneDNN", ScalarType::BFloat16, {num_threads, static_cast<int64_t>(factors.addend)}};
  for (const auto* numbers : {&factors.x.sizes, &factors.x.strides, &factors.y.sizes, &factors.y.strides}) {
    claim.shape.insert(claim.shape.end(), numbers->begin(), numbers->end());
  }
  return claim;
}

Exact find_product(const Plan& plan, const Step& step, Addend addend) {
  const size_t first = addend == Addend::none ? 0 : 1;
  const Meta *result = result_meta(plan, step), *x = meta_at(plan, step.operands[first]);
  const Meta* y = meta_at(plan, step.operands[first + 1]);
  if (!result || result->sizes.size() < 2 || !has_plain_strides(*result) || !is_factor(result, result->sizes.size()) ||
      !is_factor(x, result->sizes.size()) || !is_factor(y, result->sizes.size()) ||
      c10::multiply_integers(x->sizes) * y->sizes.back() <= most_of_atens_own) {
    return {};
  }
  const Factors factors{*x, *y, *result, addend};
  const int num_threads = onednn_threads();
  const auto kept = num_threads ? kept_product(factors, num_threads) : nullptr;
  const bool is_atens = kept && prove(claim_of(factors, num_threads), [&] {
    return is_atens_product(factors, *kept, true) && is_atens_product(factors, *kept, false);
  });
  const auto inputs = first ? slots_at(step, {0, 1, 2}) : slots_at(step, {0, 1});
  return is_atens ? Exact{&call_onednn_product, nullptr, inputs, std::shared_ptr<const OnednnProduct>(kept)} : Exact();
}

Exact find_alone(const Plan& plan, const Step& step) {
  return find_product(plan, step, Addend::none);
}

Exact find_added(const Plan& plan, const Step& step) {
  const auto addend = addend_of(plan, step);
  return addend ? find_product(plan, step, *addend) : Exact();
}

} // namespace

std::vector<KernelRow> onednn_product_kernels() {
  return {{{"aten::mm", "aten::bmm"}, &find_alone}, {{"aten::addmm", "aten::baddbmm"}, &find_added}};
}

} // namespace gradc
#else

namespace gradc {

std::vector<KernelRow> onednn_product_kernels() {
  return {};
}

} // namespace gradc
#endif
