#include "executor/cpu/csrc/norms.h"

#include "executor/core/csrc/kernels.h"
#include "executor/core/csrc/prove.h"
#include "executor/cpu/csrc/loops.h"
#include "executor/cpu/csrc/memory.h"
#include "executor/cpu/csrc/pointwise.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <cmath>
#include <cstring>

namespace gradc {
namespace {

constexpr int64_t num_channels = 8;  // channels at a time

using Floats = float __attribute__((vector_size(32)));
using Loaded = float __attribute__((vector_size(32), aligned(4), may_alias));
using FourFloats = float __attribute__((vector_size(16)));
using Ints = int __attribute__((vector_size(32)));
using Doubles = double __attribute__((vector_size(32)));

struct Shape {
  int64_t images, channels, pixels;
  int64_t count() const {
    return images * pixels;
  }
};

// What a batch norm reads and writes; null pointers where the user has no such parameter.
struct Norm {
  const float *in, *weight, *bias;
  float *running_mean, *running_var;
  double momentum, eps;
  float *out, *mean, *invstd;
};

// Eight rows of eight become the eight columns.
inline __attribute__((always_inline)) void transpose(Floats (&rows)[num_channels]) {
  Floats pairs[8], fours[8];
  for (int i = 0; i < 8; i += 2) {
    pairs[i] = __builtin_shuffle(rows[i], rows[i + 1], Ints{0, 8, 1, 9, 4, 12, 5, 13});
    pairs[i + 1] = __builtin_shuffle(rows[i], rows[i + 1], Ints{2, 10, 3, 11, 6, 14, 7, 15});
  }
  for (int i = 0; i < 8; i += 4) {
    for (int half = 0; half < 2; ++half) {
      fours[i + 2 * half] = __builtin_shuffle(pairs[i + half], pairs[i + half + 2], Ints{0, 1, 8, 9, 4, 5, 12, 13});
      fours[i + 2 * half + 1] = __builtin_shuffle(pairs[i + half], pairs[i + half + 2], Ints{2, 3, 10, 11, 6, 7, 14, 15});
    }
  }
  for (int i = 0; i < 4; ++i) {
    rows[i] = __builtin_shuffle(fours[i], fours[i + 4], Ints{0, 1, 2, 3, 8, 9, 10, 11});
    rows[i + 4] = __builtin_shuffle(fours[i], fours[i + 4], Ints{4, 5, 6, 7, 12, 13, 14, 15});
  }
}

// Sums of `num_channels` channels, or of the squares of their distances to `means`: pixel after pixel, as ATen adds up.
template <bool of_squares>
GRADC_WIDE void sum_channels(double* sums, const float* in, const float* means, const Shape& shape) {
  Doubles low{}, high{};
  const auto add = [&](const Floats& pixel) __attribute__((always_inline)) {
    FourFloats halves[2];
    std::memcpy(halves, &pixel, sizeof(halves));
    low += __builtin_convertvector(halves[0], Doubles);
    high += __builtin_convertvector(halves[1], Doubles);
  };
  for (int64_t image = 0; image < shape.images; ++image, in += shape.channels * shape.pixels) {
    int64_t pixel = 0;
    for (; pixel + 8 <= shape.pixels; pixel += 8) {
      Floats rows[num_channels];
      for (int c = 0; c < num_channels; ++c) {
        rows[c] = *reinterpret_cast<const Loaded*>(in + c * shape.pixels + pixel);
        if constexpr (of_squares) {
          rows[c] -= means[c];
          rows[c] *= rows[c];
        }
      }
      transpose(rows);
      for (const Floats& each : rows) {
        add(each);
      }
    }
    for (; pixel < shape.pixels; ++pixel) {
      Floats values;
      for (int c = 0; c < num_channels; ++c) {
        values[c] = in[c * shape.pixels + pixel] - (of_squares ? means[c] : 0);
        values[c] = of_squares ? values[c] * values[c] : values[c];
      }
      add(values);
    }
  }
  std::memcpy(sums, &low, sizeof(low));
  std::memcpy(sums + 4, &high, sizeof(high));
}

// `mean`, and in place of `invstd` the sums of squares. Each channel is added up by one thread, as ATen's are.
void collect(const Norm& norm, const Shape& shape) {
  const int64_t num_parts = (shape.channels + num_channels - 1) / num_channels;
  const int64_t of_a_thread = most_on_one_thread / (num_channels * shape.count()) + 1;
  at::parallel_for(0, num_parts, of_a_thread, [&](int64_t begin, int64_t end) {
    for (int64_t next = begin * num_channels; next < std::min(end * num_channels, shape.channels); next += num_channels) {
      const int64_t first = std::min(next, shape.channels - num_channels), num_known = next - first; // added up by another part
      const float* in = norm.in + first * shape.pixels;
      float means[num_channels] = {};
      double sums[num_channels];
      sum_channels<false>(sums, in, means, shape);
      std::transform(sums, sums + num_channels, means, [&](double sum) { return static_cast<float>(sum / shape.count()); });
      sum_channels<true>(sums, in, means, shape);
      std::copy(means + num_known, means + num_channels, norm.mean + next);
      std::copy(sums + num_known, sums + num_channels, norm.invstd + next);
    }
  });
}

void update(const Norm& norm, const Shape& shape) {
  const auto momentum = static_cast<float>(norm.momentum);
  for (int64_t c = 0; c < shape.channels; ++c) {
    const float squares = norm.invstd[c];
    const double var = squares / shape.count();
    norm.invstd[c] = var != 0 || norm.eps != 0 ? 1 / std::sqrt(var + norm.eps) : 0;
    if (norm.running_mean) {
      norm.running_mean[c] = momentum * norm.mean[c] + (1 - momentum) * norm.running_mean[c];
    }
    if (norm.running_var) {
      const double unbiased = squares / (shape.count() - 1);
      norm.running_var[c] = momentum * unbiased + (1 - momentum) * norm.running_var[c];
    }
  }
}

// From plane `begin` on: the pixels of one channel of one image.
GRADC_WIDE void transform(const Norm& norm, const Shape& shape, int64_t begin, int64_t end) {
  for (int64_t plane = begin; plane < end; ++plane) {
    const int64_t c = plane % shape.channels;
    const float* in = norm.in + plane * shape.pixels;
    float* out = norm.out + plane * shape.pixels;
    const float scale = norm.invstd[c] * (norm.weight ? norm.weight[c] : 1);
    const float shift = std::fma(-norm.mean[c], scale, norm.bias ? norm.bias[c] : 0);
    for (int64_t pixel = 0; pixel < shape.pixels; ++pixel) {
      out[pixel] = std::fma(in[pixel], scale, shift);
    }
  }
}

void normalize(const Norm& norm, const Shape& shape) {
  collect(norm, shape);
  update(norm, shape);
  at::parallel_for(0, shape.images * shape.channels, most_on_one_thread / shape.pixels + 1, [&](int64_t begin, int64_t end) {
    transform(norm, shape, begin, end);
  });
}

// Whether this machine's ATen rounds as we do: it may not have fused multiply-adds.
bool normalizes_as_aten() {
  return prove({"batch norm"}, [](TrialNumbers numbers) {
    const Shape shape{3, 11, 37};
    const auto in = numbers({shape.images, shape.channels, shape.pixels}), weight = numbers({shape.channels});
    const auto bias = numbers({shape.channels}), mean = numbers({shape.channels}), var = numbers({shape.channels});
    const auto our_mean = mean.clone(), our_var = var.clone();
    auto out = at::empty_like(in), save_mean = at::empty_like(mean), save_invstd = at::empty_like(var);
    const double momentum = 0.1, eps = 1e-5;
    normalize(
        {in.const_data_ptr<float>(), weight.const_data_ptr<float>(), bias.const_data_ptr<float>(),
         our_mean.mutable_data_ptr<float>(), our_var.mutable_data_ptr<float>(), momentum, eps, out.mutable_data_ptr<float>(),
         save_mean.mutable_data_ptr<float>(), save_invstd.mutable_data_ptr<float>()},
        shape);
    const auto [result, result_mean, result_invstd] = at::native_batch_norm(in, weight, bias, mean, var, true, momentum, eps);
    return have_same_bits(out, result) && have_same_bits(save_mean, result_mean) && have_same_bits(save_invstd, result_invstd) &&
        have_same_bits(our_mean, mean) && have_same_bits(our_var, var);
  });
}

Shape shape_of(const Meta& meta) {
  return {meta.sizes[0], meta.sizes[1], c10::multiply_integers(meta.sizes.begin() + 2, meta.sizes.end())};
}

at::Tensor memory_of(const Step& step, Frame& frame, size_t position) {
  return new_memory(*frame.plan.metas[step.outs[position]]);
}

void call_norm(const Step& step, Frame& frame) {
  const auto tensor = [&](size_t position) -> const c10::IValue& { return frame[step.operands[position]]; };
  const auto read = [&](size_t position) {
    return tensor(position).isNone() ? nullptr : tensor(position).toTensor().const_data_ptr<float>();
  };
  const auto write = [&](size_t position) {
    return tensor(position).isNone() ? nullptr : tensor(position).toTensor().mutable_data_ptr<float>();
  };
  at::Tensor out = memory_of(step, frame, 0), mean = memory_of(step, frame, 1), invstd = memory_of(step, frame, 2);
  normalize(
      {read(0), read(1), read(2), write(3), write(4), tensor(6).toDouble(), tensor(7).toDouble(), out.mutable_data_ptr<float>(),
       mean.mutable_data_ptr<float>(), invstd.mutable_data_ptr<float>()},
      shape_of(*frame.plan.metas[step.operands[0].index]));
  frame.slots[step.outs[0]] = std::move(out);
  frame.slots[step.outs[1]] = std::move(mean);
  frame.slots[step.outs[2]] = std::move(invstd);
}

// A tensor's meta if it is a contiguous one of floats.
const Meta* contiguous_floats(const Plan& plan, Index slot) {
  const bool is_known = slot >= 0 && plan.metas[slot];
  const bool is_it = is_known && plan.metas[slot]->dtype == c10::ScalarType::Float && is_contiguous(*plan.metas[slot]);
  return is_it ? &*plan.metas[slot] : nullptr;
}

Exact find_norm(const Plan& plan, const Step& step) {
  if (step.operands[0].kind != Operand::Kind::slot) {
    return {};
  }
  const Meta* in = contiguous_floats(plan, step.operands[0].index);
  if (!in || in->sizes.size() < 3 || in->sizes[1] < num_channels || shape_of(*in).pixels < 2 || shape_of(*in).images < 1) {
    return {};
  }
  const auto fits = [&](Index slot, const std::vector<int64_t>& sizes) {
    const Meta* meta = contiguous_floats(plan, slot);
    return meta && meta->sizes == sizes;
  };
  const std::vector<int64_t> channels{in->sizes[1]};
  for (size_t position = 1; position <= 4; ++position) {
    const Operand& operand = step.operands[position];
    const bool is_tensor = operand.kind == Operand::Kind::slot && fits(operand.index, channels);
    if (!is_tensor && !plan.is_constant(operand, &c10::IValue::isNone)) {
      return {};
    }
  }
  const bool is_training = plan.is_constant(step.operands[5], &c10::IValue::isBool) &&
      plan.constants[step.operands[5].index].boxed.toBool();
  const bool is_known = is_training && plan.is_constant(step.operands[6], &c10::IValue::isDouble) &&
      plan.is_constant(step.operands[7], &c10::IValue::isDouble) && fits(step.outs[0], in->sizes) &&
      fits(step.outs[1], channels) && fits(step.outs[2], channels);
  return is_known && normalizes_as_aten() ? Exact{&call_norm} : Exact();
}

} // namespace

std::vector<KernelRow> norm_kernels() {
  return {{{"aten::native_batch_norm"}, &find_norm}};
}

} // namespace gradc
