#include "executor/cpu/csrc/bfloat16_product.h"

#include "executor/core/csrc/kernels.h"
#include "executor/core/csrc/prove.h"
#include "executor/cpu/csrc/bfloat16_tiles.h"
#include "executor/cpu/csrc/direct.h"
#include "executor/cpu/csrc/memory.h"
#include "executor/cpu/csrc/product.h"

#include <ATen/ATen.h>
#include <ATen/Context.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <limits>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

namespace gradc {
namespace {

using c10::ScalarType;

constexpr double least_gain = 1.15; // of a product of some size, so that others gain too
constexpr int fewest_timed = 8, most_timed = 40;
constexpr int64_t fewest_result_rows = 28, fewest_result_columns = 17; // below, tiles are filled in part
constexpr int64_t seen_parts[] = {1024, 768, 512, 384, 256, 128, 64}; // of the inner dimension
constexpr int64_t corner = 48; // rows and columns of a product of numbers that are seldom met
constexpr double too_small = 1e-19; // numbers whose products are denormal
constexpr int64_t sampled_rows = 32; // by which most ways are told apart

at::Tensor of_aten(const at::Tensor& x, const at::Tensor& y, const at::Tensor& addend) {
  return addend.defined() ? at::addmm(addend, x, y) : at::mm(x, y);
}

at::Tensor of_ours(Bfloat16Product sizes, const at::Tensor& x, const at::Tensor& y, const at::Tensor& addend) {
  sizes.rows = x.size(0);
  sizes.columns = y.size(1);
  sizes.inner = x.size(1);
  sizes.x_down = x.stride(0);
  sizes.x_across = x.stride(1);
  sizes.y_down = y.stride(0);
  sizes.y_across = y.stride(1);
  at::Tensor out = at::empty({sizes.rows, sizes.columns}, x.options());
  const auto* added = addend.defined() ? addend.const_data_ptr<c10::BFloat16>() : nullptr;
  multiply_bfloat16(
      sizes, x.const_data_ptr<c10::BFloat16>(), y.const_data_ptr<c10::BFloat16>(), added,
      addend.defined() && addend.dim() == 2 ? sizes.columns : 0, out.mutable_data_ptr<c10::BFloat16>());
  return out;
}

// ---- whether it pays

double seconds(const std::function<at::Tensor()>& run) {
  const auto start = std::chrono::steady_clock::now();
  run();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// Of a product of some size, the best of some in turns: more of them where it does not seem so, since threads that begin, and other
// processes, take their time.
bool pays(int num_threads) {
  return prove({"product of bfloat16 is faster in float32", ScalarType::BFloat16, {num_threads}}, OwnTrial([] {
    const at::Tensor x = at::ones({256, 512}, ScalarType::BFloat16), y = at::ones({512, 512}, ScalarType::BFloat16);
    Bfloat16Product sizes;
    sizes.part = x.size(1);
    double ours = std::numeric_limits<double>::infinity(), of_onednn = ours;
    const auto is_faster = [&] { return ours * least_gain < of_onednn; };
    for (int i = 0; i < fewest_timed || (i < most_timed && !is_faster()); ++i) {
      ours = std::min(ours, seconds([&] { return of_ours(sizes, x, y, {}); }));
      of_onednn = std::min(of_onednn, seconds([&] { return of_aten(x, y, {}); }));
    }
    return is_faster();
  }));
}

// ---- what oneDNN does

// A matrix of these sizes and strides, of which one is 1.
at::Tensor laid_out(const at::Tensor& numbers, int64_t down, int64_t across) {
  at::Tensor matrix = at::empty_strided(numbers.sizes(), {down, across}, numbers.options());
  return matrix.copy_(numbers);
}

// Numbers of many magnitudes.
at::Tensor numbers_for(at::IntArrayRef size, double step) {
  constexpr int64_t period = 8209;
  const auto places = at::arange(1, period + 1, at::kDouble).mul_(step);
  const auto numbers = places.sin().mul_(places.mul(0.37).cos_().mul_(4).exp2_()).to(ScalarType::BFloat16);
  const int64_t count = c10::multiply_integers(size);
  return numbers.repeat({count / period + 1}).narrow(0, 0, count).view(size);
}

// Numbers that come twice in the inner dimension. With the second ones of one factor negative, what is left is what was rounded.
at::Tensor cancelling_x(const Bfloat16Product& sizes) {
  const at::Tensor half = numbers_for({sizes.rows, (sizes.inner + 1) / 2}, 0.7);
  return laid_out(at::cat({half, half.narrow(1, 0, sizes.inner / 2)}, 1), sizes.x_down, sizes.x_across);
}
at::Tensor cancelling_y(const Bfloat16Product& sizes) {
  const at::Tensor half = numbers_for({(sizes.inner + 1) / 2, sizes.columns}, 1.3);
  return laid_out(at::cat({half, half.narrow(0, 0, sizes.inner / 2).neg()}, 0), sizes.y_down, sizes.y_across);
}

// One product, or a sum with one, and what ATen makes of it; made when first asked for.
class Asked {
 public:
  Asked(const Bfloat16Product& sizes, Addend addend) : sizes_(sizes), addend_(addend) {}

  bool agrees(const Bfloat16Product& way) {
    make();
    const int64_t some = std::min(sampled_rows, way.rows);
    const at::Tensor of_some = addend_ == Addend::matrix ? numbers_added_.narrow(0, 0, some) : numbers_added_;
    return have_same_bits(of_ours(way, x_.narrow(0, 0, some), y_, of_some), result_.narrow(0, 0, some)) &&
        have_same_bits(of_ours(way, x_, y_, numbers_added_), result_) && agrees_in_a_corner(way);
  }

 private:
  void make() {
    if (!result_.defined()) {
      x_ = cancelling_x(sizes_);
      y_ = cancelling_y(sizes_);
      numbers_added_ = make_addend(sizes_.rows, sizes_.columns, [](at::IntArrayRef size) { return numbers_for(size, 0.9); });
      result_ = of_aten(x_, y_, numbers_added_);
    }
  }

  template <class Make>
  at::Tensor make_addend(int64_t rows, int64_t columns, const Make& make) const {
    return addend_ == Addend::none ? at::Tensor() : addend_ == Addend::row ? make({columns}) : make({rows, columns});
  }

  // Zeros, infinities and denormals, of factors and of products, in whatever order they are added.
  bool agrees_in_a_corner(const Bfloat16Product& way) const {
    const int64_t rows = std::min(corner, way.rows), columns = std::min(corner, way.columns), inner = std::min(corner, way.inner);
    const auto agree = [&](TrialNumbers::Kind kind, double scale) {
      TrialNumbers numbers(kind);
      const auto make = [&](at::IntArrayRef size) { return numbers(size).mul(scale).to(ScalarType::BFloat16); };
      const at::Tensor x = make({rows, inner}), y = make({inner, columns}), addend = make_addend(rows, columns, make);
      return have_same_bits(of_ours(way, x, y, addend), of_aten(x, y, addend));
    };
    const auto& kinds = TrialNumbers::kinds;
    return agree(TrialNumbers::Kind::ordinary, too_small) &&
        std::all_of(std::begin(kinds), std::end(kinds), [&](TrialNumbers::Kind kind) { return agree(kind, 1); });
  }

  const Bfloat16Product sizes_;
  const Addend addend_;
  at::Tensor x_, y_, numbers_added_, result_;
};

std::vector<Bfloat16Product> bfloat16_ways_for(const Bfloat16Product& sizes) {
  std::vector<Bfloat16Product> ways;
  const auto add = [&](bool flushes, int64_t part) {
    ways.push_back(sizes);
    ways.back().flushes = flushes;
    ways.back().part = part;
  };
  for (const bool flushes : {true, false}) {
    add(flushes, sizes.inner);
    for (const int64_t part : seen_parts) {
      if (part < sizes.inner) {
        add(flushes, part);
      }
    }
  }
  return ways;
}

Claim claim_of_bfloat16(const Bfloat16Product& way, Addend addend) {
  return {"product of bfloat16",
          ScalarType::BFloat16,
          {way.rows, way.columns, way.inner, way.x_down, way.x_across, way.y_down, way.y_across, way.num_threads, way.is_deterministic,
           static_cast<int64_t>(addend), way.part, way.flushes}};
}

// That in which oneDNN makes such products now.
std::optional<Bfloat16Product> way_of_onednn(const Bfloat16Product& sizes, Addend addend) {
  const auto ways = bfloat16_ways_for(sizes);
  Asked asked(sizes, addend);
  const auto way = std::find_if(ways.begin(), ways.end(), [&](const Bfloat16Product& way) {
    return prove(claim_of_bfloat16(way, addend), [&] { return asked.agrees(way); });
  });
  return way == ways.end() ? std::nullopt : std::optional(*way);
}

// ---- calls

bool holds_now(const Bfloat16Product& product) {
  return at::get_num_threads() == product.num_threads && at::globalContext().userEnabledMkldnn() &&
      at::globalContext().deterministicMkldnn() == product.is_deterministic && !(flushes_denormals() && !product.flushes);
}

template <Addend addend>
void call(const Step& step, Frame& frame) {
  const auto& product = payload_as<Bfloat16Product>(step.exact.payload);
  if (!holds_now(product)) {
    return call_as_eager(step, frame);
  }
  const auto at = [&](size_t position) { return static_cast<const c10::BFloat16*>(memory_at(frame, step.exact.inputs[position])); };
  at::Tensor result = result_memory(step, frame);
  constexpr size_t x = addend == Addend::none ? 0 : 1;
  multiply_bfloat16(
      product, at(x), at(x + 1), addend == Addend::none ? nullptr : at(0), addend == Addend::matrix ? product.columns : 0,
      static_cast<c10::BFloat16*>(result.mutable_data_ptr()));
  frame.slots[step.outs[0]] = std::move(result);
}

const Meta* bfloat16_matrix_at(const Plan& plan, const Operand& operand) {
  const Meta* meta = meta_at(plan, operand);
  return meta && meta->dtype == ScalarType::BFloat16 && meta->sizes.size() == 2 && meta->sizes[0] > 0 && meta->sizes[1] > 0 ? meta : nullptr;
}

// Numbers of rows or of columns lie side by side, and no two in one place.
bool is_laid_out(const Meta& meta) {
  const auto& [sizes, strides] = std::tie(meta.sizes, meta.strides);
  const bool has_rows = strides[1] == 1 && strides[0] >= sizes[1], has_columns = strides[0] == 1 && strides[1] >= sizes[0];
  return (has_rows || has_columns) && sizes[0] * strides[0] + sizes[1] * strides[1] <= 2 * most_tried_elements;
}

bool is_fit(const Meta& result) {
  const int64_t rows = result.sizes[0], columns = result.sizes[1];
  return has_plain_strides(result) && rows >= fewest_result_rows && columns >= fewest_result_columns && rows * columns <= most_tried_elements;
}

std::optional<Bfloat16Product> prepare_bfloat16(const Plan& plan, const Step& step, const Operand& x, const Operand& y, Addend addend) {
  const Meta *result = result_meta(plan, step), *left = bfloat16_matrix_at(plan, x), *right = bfloat16_matrix_at(plan, y);
  if (!result || step.outs[0] < 0 || !left || !right || !is_fit(*result) || !is_laid_out(*left) || !is_laid_out(*right)) {
    return {};
  }
  Bfloat16Product product{
      result->sizes[0], result->sizes[1], left->sizes[1], left->strides[0], left->strides[1], right->strides[0], right->strides[1]};
  product.num_threads = at::get_num_threads();
  product.is_deterministic = at::globalContext().deterministicMkldnn();
  const bool may_pay = has_bfloat16_tiles() && holds_now(product) && pays(product.num_threads);
  return may_pay ? way_of_onednn(product, addend) : std::nullopt;
}

Exact find_bfloat16_mm(const Plan& plan, const Step& step) {
  auto product = prepare_bfloat16(plan, step, step.operands[0], step.operands[1], Addend::none);
  return product ? Exact{&call<Addend::none>, nullptr, slots_at(step, {0, 1}), *product} : Exact();
}

Exact find_bfloat16_addmm(const Plan& plan, const Step& step) {
  const auto addend = addend_of(plan, step);
  auto product = addend ? prepare_bfloat16(plan, step, step.operands[1], step.operands[2], *addend) : std::nullopt;
  const Kernel kernel = addend == Addend::row ? &call<Addend::row> : &call<Addend::matrix>;
  return product ? Exact{kernel, nullptr, slots_at(step, {0, 1, 2}), *product} : Exact();
}

} // namespace

std::vector<KernelRow> bfloat16_product_kernels() {
  return {{{"aten::mm"}, &find_bfloat16_mm}, {{"aten::addmm"}, &find_bfloat16_addmm}};
}

} // namespace gradc
