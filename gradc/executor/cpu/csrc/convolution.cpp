#include "executor/cpu/csrc/convolution.h"

#include "executor/cpu/csrc/onednn.h"

#if __has_include(<oneapi/dnnl/dnnl.h>)
#include "executor/core/csrc/arguments.h"
#include "executor/core/csrc/kernels.h"
#include "executor/core/csrc/prove.h"
#include "executor/cpu/csrc/direct.h"
#include "executor/cpu/csrc/memory.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/EmptyTensor.h>
#include <ATen/native/ConvUtils.h>
#include <c10/core/MemoryFormat.h>

#include <algorithm>
#include <array>
#include <functional>
#include <iterator>
#include <optional>
#include <tuple>
#include <utility>

namespace gradc {

// What a step keeps: a primitive for what is computed, and the state of torch in which it is ATen's.
struct Convolution {
  int num_threads = 0;
  std::unique_ptr<const KeptPrimitive> result, grad_input, grad_weight; // as far as the step computes it
};

namespace {

using c10::ScalarType;
using Integers = std::vector<int64_t>;

constexpr uint64_t seed_of_trials = 1;

// What a convolution is of. Of a backward `result` is the gradient that comes, `grad_input` and `grad_weight` are what it computes.
struct Problem {
  Meta input, weight, result, grad_input, grad_weight;
  bool has_bias = false, is_transposed = false;
  Integers stride, padding, dilation, output_padding;
  int64_t groups = 1;
  std::array<bool, 3> wanted{}; // of a backward: the gradients of the input, the weight, the bias
};

Meta bias_of(const Problem& problem) {
  return {problem.weight.dtype, {problem.result.sizes[1]}, {1}};
}

// ---- the tensors as oneDNN sees them

// A sequence is an image of one row, as ATen has it.
Meta as_image(Meta meta) {
  if (meta.sizes.size() == 3) {
    meta.strides.insert(meta.strides.begin() + 2, meta.sizes[2] * meta.strides[2]);
    meta.sizes.insert(meta.sizes.begin() + 2, 1);
  }
  return meta;
}

Problem of_images(Problem problem) {
  if (problem.input.sizes.size() == 3) {
    problem.stride.insert(problem.stride.begin(), 1);
    problem.padding.insert(problem.padding.begin(), 0);
    problem.dilation.insert(problem.dilation.begin(), 1);
    problem.output_padding.insert(problem.output_padding.begin(), 0);
  }
  problem.input = as_image(std::move(problem.input));
  problem.weight = as_image(std::move(problem.weight));
  problem.result = as_image(std::move(problem.result));
  problem.grad_input = as_image(std::move(problem.grad_input));
  problem.grad_weight = as_image(std::move(problem.grad_weight));
  return problem;
}

// A weight, or its gradient: by groups where there are several, and the channels that a transposed convolution makes before those that
// it reads.
Meta of_channels(Meta weight, const Problem& problem) {
  const bool has_groups = problem.groups > 1;
  if (has_groups) {
    weight.sizes[0] /= problem.groups;
    weight.sizes.insert(weight.sizes.begin(), problem.groups);
    weight.strides.insert(weight.strides.begin(), weight.sizes[1] * weight.strides[0]);
  }
  if (problem.is_transposed) {
    std::swap(weight.sizes[has_groups], weight.sizes[has_groups + 1]);
    std::swap(weight.strides[has_groups], weight.strides[has_groups + 1]);
  }
  return weight;
}

// Without the dispatcher, where a mode may look on.
at::Tensor unfilled(const Meta& meta) {
  return at::detail::empty_strided_cpu(meta.sizes, meta.strides, meta.dtype);
}

bool is_channels_last(const Problem& images) {
  return at::native::mkldnn_conv_use_channels_last(unfilled(images.input), unfilled(images.weight));
}

// As ATen brings images to first, if it is to keep their channels last.
Meta with_channels_last(Meta meta) {
  meta.strides = meta.sizes.size() == 5 ? c10::get_channels_last_strides_3d(meta.sizes) : c10::get_channels_last_strides_2d(meta.sizes);
  return meta;
}

MemoryDescriptor layout(const Meta& meta) {
  return memory_laid_out(meta.sizes, meta.strides, meta.dtype);
}

// ---- the primitives that ATen would make

class Maker {
 public:
  explicit Maker(const Problem& problem)
      : images_(of_images(problem)),
        keeps_order_(is_channels_last(images_)),
        weight_(of_channels(images_.weight, images_)),
        dilates_(images_.dilation),
        padding_behind_(images_.padding) {
    std::for_each(dilates_.begin(), dilates_.end(), [](int64_t& each) { each -= 1; });
    std::transform(
        padding_behind_.begin(), padding_behind_.end(), images_.output_padding.begin(), padding_behind_.begin(), std::minus<int64_t>());
  }

  std::unique_ptr<const KeptPrimitive> forward() const {
    std::vector<End> ends{
        {DNNL_ARG_SRC, dnnl_query_src_md, 0, false, layout(images_.input)},
        {DNNL_ARG_WEIGHTS, dnnl_query_weights_md, 0, false, layout(weight_)},
        {DNNL_ARG_DST, dnnl_query_dst_md, 0, true, layout(images_.result)}};
    if (images_.has_bias) {
      ends.push_back({DNNL_ARG_BIAS, dnnl_query_weights_md, 1, false, layout(bias_of(images_))});
    }
    return keep(forward_descriptor(images_.has_bias), ends);
  }

  std::unique_ptr<const KeptPrimitive> backward_of_input() const {
    const auto hint = forward_descriptor(false);
    const auto input = as_liked(images_.input), weight = weight_as_liked(), result = as_liked(images_.result);
    const auto descriptor = primitive_descriptor([&](dnnl_primitive_desc_t* made) {
      const auto create = images_.is_transposed ? onednn()->deconvolution_backward_data_primitive_desc_create
                                                : onednn()->convolution_backward_data_primitive_desc_create;
      return create(
          made, onednn()->engine, algorithm(), input.get(), weight.get(), result.get(), images_.stride.data(), dilates_.data(),
          images_.padding.data(), padding_behind_.data(), hint.get(), onednn()->attributes);
    });
    return keep(
        descriptor,
        {{DNNL_ARG_DIFF_DST, dnnl_query_diff_dst_md, 0, false, layout(images_.result)},
         {DNNL_ARG_WEIGHTS, dnnl_query_weights_md, 0, false, layout(weight_)},
         {DNNL_ARG_DIFF_SRC, dnnl_query_diff_src_md, 0, true, layout(images_.grad_input)}});
  }

  std::unique_ptr<const KeptPrimitive> backward_of_weight() const {
    const auto hint = forward_descriptor(false);
    const auto input = as_liked(images_.input), weight = weight_as_liked(), result = as_liked(images_.result);
    const auto bias_liked = images_.has_bias ? memory_as_liked(bias_of(images_).sizes, images_.weight.dtype) : MemoryDescriptor();
    const auto descriptor = primitive_descriptor([&](dnnl_primitive_desc_t* made) {
      const auto create = images_.is_transposed ? onednn()->deconvolution_backward_weights_primitive_desc_create
                                                : onednn()->convolution_backward_weights_primitive_desc_create;
      return create(
          made, onednn()->engine, algorithm(), input.get(), weight.get(), bias_liked.get(), result.get(), images_.stride.data(),
          dilates_.data(), images_.padding.data(), padding_behind_.data(), hint.get(), onednn()->attributes);
    });
    std::vector<End> ends{
        {DNNL_ARG_DIFF_DST, dnnl_query_diff_dst_md, 0, false, layout(images_.result)},
        {DNNL_ARG_SRC, dnnl_query_src_md, 0, false, layout(images_.input)},
        {DNNL_ARG_DIFF_WEIGHTS, dnnl_query_diff_weights_md, 0, true, layout(of_channels(images_.grad_weight, images_))}};
    if (images_.has_bias) {
      ends.push_back({DNNL_ARG_DIFF_BIAS, dnnl_query_diff_weights_md, 1, true, layout(bias_of(images_))});
    }
    return keep(descriptor, ends);
  }

 private:
  dnnl_alg_kind_t algorithm() const {
    return images_.is_transposed ? dnnl_deconvolution_direct : dnnl_convolution_direct;
  }

  // ATen leaves the order to oneDNN but for images with their channels last.
  MemoryDescriptor as_liked(const Meta& meta) const {
    return keeps_order_ ? layout(with_channels_last(meta)) : memory_as_liked(meta.sizes, meta.dtype);
  }
  MemoryDescriptor weight_as_liked() const {
    return memory_as_liked(weight_.sizes, weight_.dtype);
  }

  PrimitiveDescriptor forward_descriptor(bool has_bias) const {
    const auto input = as_liked(images_.input), weight = weight_as_liked(), result = as_liked(images_.result);
    const auto bias_liked = has_bias ? memory_as_liked(bias_of(images_).sizes, images_.weight.dtype) : MemoryDescriptor();
    return primitive_descriptor([&](dnnl_primitive_desc_t* made) {
      const auto create = images_.is_transposed ? onednn()->deconvolution_forward_primitive_desc_create
                                                : onednn()->convolution_forward_primitive_desc_create;
      return create(
          made, onednn()->engine, dnnl_forward_training, algorithm(), input.get(), weight.get(), bias_liked.get(), result.get(),
          images_.stride.data(), dilates_.data(), images_.padding.data(), padding_behind_.data(), onednn()->attributes);
    });
  }

  const Problem images_;
  const bool keeps_order_;
  const Meta weight_;
  Integers dilates_, padding_behind_;
};

// ---- calls

void* address(const at::Tensor& tensor) {
  return const_cast<void*>(tensor.const_data_ptr());
}

void run_forward(const Convolution& kept, const at::Tensor& input, const at::Tensor& weight, const at::Tensor* bias, const at::Tensor& result) {
  std::array<void*, 4> ends{address(input), address(weight), result.mutable_data_ptr(), bias ? address(*bias) : nullptr};
  kept.result->run({ends.data(), bias ? size_t{4} : size_t{3}});
}

// Gradients are written where there is memory for them.
void run_backward(
    const Convolution& kept, const at::Tensor& grad, const at::Tensor& input, const at::Tensor& weight,
    const std::array<at::Tensor, 3>& gradients) {
  if (kept.grad_input) {
    kept.grad_input->run(std::array{address(grad), address(weight), gradients[0].mutable_data_ptr()});
  }
  if (kept.grad_weight) {
    const bool has_bias = gradients[2].defined();
    std::array<void*, 4> ends{
        address(grad), address(input), gradients[1].mutable_data_ptr(), has_bias ? gradients[2].mutable_data_ptr() : nullptr};
    kept.grad_weight->run({ends.data(), has_bias ? size_t{4} : size_t{3}});
  }
}

// onednn_threads of convolutions.
int convolution_threads() {
  const auto precision = at::globalContext().float32Precision(at::Float32Backend::MKLDNN, at::Float32Op::CONV);
  const bool is_full = precision != at::Float32Precision::TF32 && precision != at::Float32Precision::BF16;
  return is_full ? onednn_threads() : 0;
}

const Convolution& kept_of(const Step& step) {
  return *payload_as<std::shared_ptr<const Convolution>>(step.exact.payload);
}

void call_forward(const Step& step, Frame& frame) {
  const Convolution& kept = kept_of(step);
  if (convolution_threads() != kept.num_threads) {
    return call_as_eager(step, frame);
  }
  at::Tensor result = result_memory(step, frame);
  const bool has_bias = !is_none(frame, step.operands[2]);
  const at::Tensor* bias = has_bias ? &tensor_at(frame, step.operands[2]) : nullptr;
  run_forward(kept, tensor_at(frame, step.operands[0]), tensor_at(frame, step.operands[1]), bias, result);
  frame.slots[step.outs[0]] = std::move(result);
}

void call_backward(const Step& step, Frame& frame) {
  const Convolution& kept = kept_of(step);
  if (convolution_threads() != kept.num_threads) {
    return call_as_eager(step, frame);
  }
  std::array<at::Tensor, 3> gradients;
  for (size_t position = 0; position < gradients.size(); ++position) {
    if (step.outs[position] >= 0) {
      gradients[position] = new_memory(*frame.plan.metas[step.outs[position]]);
    }
  }
  const auto tensor = [&](size_t position) -> const at::Tensor& { return tensor_at(frame, step.operands[position]); };
  run_backward(kept, tensor(0), tensor(1), tensor(2), gradients);
  for (size_t position = 0; position < gradients.size(); ++position) {
    if (step.outs[position] >= 0) {
      frame.slots[step.outs[position]] = std::move(gradients[position]);
    }
  }
}

// ---- whether they are ATen's

at::Tensor numbers(const Meta& meta, at::Generator& generator) {
  return unfilled(meta).uniform_(-1, 1, generator);
}

bool are_the_same(const at::Tensor& ours, const at::Tensor& of_aten) {
  const auto in_memory = [](const at::Tensor& tensor) { return tensor.as_strided({tensor.numel()}, {1}); };
  return ours.strides() == of_aten.strides() && have_same_bits(in_memory(ours), in_memory(of_aten));
}

bool is_onednns(const Problem& problem, const at::Tensor& input, const at::Tensor& weight, const std::optional<at::Tensor>& bias) {
  const auto backend = at::native::select_conv_backend(
      input, weight, bias, c10::fromIntArrayRefSlow(problem.stride), c10::fromIntArrayRefSlow(problem.padding),
      c10::fromIntArrayRefSlow(problem.dilation), problem.is_transposed, c10::fromIntArrayRefSlow(problem.output_padding), problem.groups,
      std::nullopt);
  return backend == at::native::ConvBackend::Mkldnn || backend == at::native::ConvBackend::MkldnnTranspose;
}

bool is_forward_atens(const Problem& problem, const Convolution& kept) {
  auto generator = at::detail::createCPUGenerator(seed_of_trials);
  const at::Tensor input = numbers(problem.input, generator), weight = numbers(problem.weight, generator);
  std::optional<at::Tensor> bias;
  if (problem.has_bias) {
    bias = numbers(bias_of(problem), generator);
  }
  if (!is_onednns(problem, input, weight, bias)) {
    return false;
  }
  const at::Tensor of_aten = at::convolution(
      input, weight, bias, problem.stride, problem.padding, problem.dilation, problem.is_transposed, problem.output_padding,
      problem.groups);
  const at::Tensor ours = unfilled(problem.result);
  run_forward(kept, input, weight, bias ? &*bias : nullptr, ours);
  return are_the_same(ours, of_aten);
}

bool is_backward_atens(const Problem& problem, const Convolution& kept) {
  auto generator = at::detail::createCPUGenerator(seed_of_trials);
  const at::Tensor grad = numbers(problem.result, generator), input = numbers(problem.input, generator);
  const at::Tensor weight = numbers(problem.weight, generator);
  if (!is_onednns(problem, input, weight, std::nullopt)) {
    return false;
  }
  const Integers bias_sizes = bias_of(problem).sizes;
  const auto [of_input, of_weight, of_bias] = at::convolution_backward(
      grad, input, weight, problem.has_bias ? at::OptionalIntArrayRef(bias_sizes) : std::nullopt, problem.stride, problem.padding,
      problem.dilation, problem.is_transposed, problem.output_padding, problem.groups, problem.wanted);
  const std::array of_aten{of_input, of_weight, of_bias};
  std::array<at::Tensor, 3> ours;
  const std::array metas{problem.grad_input, problem.grad_weight, bias_of(problem)};
  for (size_t position = 0; position < ours.size(); ++position) {
    ours[position] = problem.wanted[position] ? unfilled(metas[position]) : at::Tensor();
  }
  run_backward(kept, grad, input, weight, ours);
  return std::equal(ours.begin(), ours.end(), of_aten.begin(), [](const at::Tensor& mine, const at::Tensor& its) {
    return mine.defined() == its.defined() && (!mine.defined() || are_the_same(mine, its));
  });
}

Claim claim_of(const char* kernel, const Problem& problem, int num_threads) {
  Claim claim{kernel, problem.input.dtype, {num_threads, problem.has_bias, problem.is_transposed, problem.groups}};
  const auto add = [&](const auto& numbers) { claim.shape.insert(claim.shape.end(), numbers.begin(), numbers.end()); };
  for (const Meta* meta : {&problem.input, &problem.weight, &problem.result, &problem.grad_input, &problem.grad_weight}) {
    add(meta->sizes);
    add(meta->strides);
  }
  add(problem.stride);
  add(problem.padding);
  add(problem.dilation);
  add(problem.output_padding);
  add(problem.wanted);
  return claim;
}

// ---- which steps

const Meta* meta_of_result(const Plan& plan, const Step& step, size_t position) {
  return step.outs[position] >= 0 && plan.metas[step.outs[position]] ? &*plan.metas[step.outs[position]] : nullptr;
}

// Numbers of a dtype, each in a place of its own.
bool is_fit(const Meta* meta, ScalarType dtype) {
  return meta && meta->dtype == dtype && is_dense(*meta) && !meta->sizes.empty() &&
      std::all_of(meta->sizes.begin(), meta->sizes.end(), [](int64_t size) { return size > 0; }) &&
      c10::multiply_integers(meta->sizes) <= most_tried_elements;
}

const Integers* ints_of(const Plan& plan, const Operand& operand) {
  return plan.is_constant(operand, &c10::IValue::isIntList) ? &plan.constants[operand.index].ints : nullptr;
}

// The parameters from `first` on: stride, padding, dilation, transposed, output_padding, groups.
bool read_parameters(const Plan& plan, const Step& step, size_t first, Problem& problem) {
  const Operand &transposed = step.operands[first + 3], &groups = step.operands[first + 5];
  Integers* const read[] = {&problem.stride, &problem.padding, &problem.dilation, nullptr, &problem.output_padding};
  for (size_t position = 0; position < std::size(read); ++position) {
    if (read[position]) {
      const Integers* given = ints_of(plan, step.operands[first + position]);
      if (!given || given->size() != problem.input.sizes.size() - 2) {
        return false;
      }
      *read[position] = *given;
    }
  }
  if (!plan.is_constant(transposed, &c10::IValue::isBool) || !plan.is_constant(groups, &c10::IValue::isInt)) {
    return false;
  }
  problem.is_transposed = plan.constants[transposed.index].boxed.toBool();
  problem.groups = plan.constants[groups.index].boxed.toInt();
  return true;
}

// The tensors, if oneDNN may take them.
std::optional<Problem> problem_of(const Meta* input, const Meta* weight, const Meta* result) {
  const bool has_dtype = input && (input->dtype == ScalarType::Float || input->dtype == ScalarType::BFloat16);
  if (!has_dtype || !is_fit(input, input->dtype) || !is_fit(weight, input->dtype) || !is_fit(result, input->dtype)) {
    return {};
  }
  const size_t dimensions = input->sizes.size();
  const bool has_images = dimensions >= 3 && dimensions <= 5 && weight->sizes.size() == dimensions && result->sizes.size() == dimensions;
  return has_images ? std::optional(Problem{*input, *weight, *result}) : std::nullopt;
}

Exact kept_as(Kernel kernel, std::shared_ptr<const Convolution> kept) {
  Exact exact{kernel};
  exact.payload = std::move(kept);
  return exact;
}

Exact find_forward(const Plan& plan, const Step& step) {
  auto problem = problem_of(meta_at(plan, step.operands[0]), meta_at(plan, step.operands[1]), meta_of_result(plan, step, 0));
  const int num_threads = problem && read_parameters(plan, step, 3, *problem) ? convolution_threads() : 0;
  if (!num_threads) {
    return {};
  }
  problem->has_bias = !plan.is_constant(step.operands[2], &c10::IValue::isNone);
  if (problem->has_bias && !is_fit(meta_at(plan, step.operands[2]), problem->weight.dtype)) {
    return {};
  }
  auto kept = std::make_shared<Convolution>(num_threads);
  kept->result = Maker(*problem).forward();
  const bool is_atens = kept->result && prove(claim_of("convolution", *problem, num_threads), [&] { return is_forward_atens(*problem, *kept); });
  return is_atens ? kept_as(&call_forward, std::move(kept)) : Exact();
}

// Which gradients are asked for; false where that is not known, or one is asked for that nobody reads, or that of the bias alone.
bool read_wanted(const Plan& plan, const Step& step, Problem& problem) {
  const Operand& mask = step.operands[10];
  if (!plan.is_constant(mask, &c10::IValue::isBoolList)) {
    return false;
  }
  const auto given = plan.constants[mask.index].boxed.toBoolList();
  for (size_t position = 0; position < problem.wanted.size(); ++position) {
    problem.wanted[position] = given[position];
    if (problem.wanted[position] != (step.outs[position] >= 0)) {
      return false;
    }
  }
  const auto read = [&](size_t position, Meta& meta) {
    const Meta* result = problem.wanted[position] ? meta_of_result(plan, step, position) : nullptr;
    meta = result ? *result : Meta();
    return !problem.wanted[position] || is_fit(result, problem.input.dtype);
  };
  problem.has_bias = problem.wanted[2];
  return read(0, problem.grad_input) && read(1, problem.grad_weight) && (problem.wanted[0] || problem.wanted[1]) &&
      (problem.wanted[1] || !problem.has_bias);
}

Exact find_backward(const Plan& plan, const Step& step) {
  auto problem = problem_of(meta_at(plan, step.operands[1]), meta_at(plan, step.operands[2]), meta_at(plan, step.operands[0]));
  const bool is_known = problem && read_wanted(plan, step, *problem) && read_parameters(plan, step, 4, *problem);
  const int num_threads = is_known ? convolution_threads() : 0;
  if (!num_threads) {
    return {};
  }
  auto kept = std::make_shared<Convolution>(num_threads);
  const Maker maker(*problem);
  kept->grad_input = problem->wanted[0] ? maker.backward_of_input() : nullptr;
  kept->grad_weight = problem->wanted[1] ? maker.backward_of_weight() : nullptr;
  const bool has_all = (kept->grad_input || !problem->wanted[0]) && (kept->grad_weight || !problem->wanted[1]);
  const bool is_atens =
      has_all && prove(claim_of("convolution backward", *problem, num_threads), [&] { return is_backward_atens(*problem, *kept); });
  return is_atens ? kept_as(&call_backward, std::move(kept)) : Exact();
}

} // namespace

std::vector<KernelRow> convolution_kernels() {
  return {{{"aten::convolution"}, &find_forward}, {{"aten::convolution_backward"}, &find_backward}};
}

} // namespace gradc
#else

namespace gradc {

std::vector<KernelRow> convolution_kernels() {
  return {};
}

} // namespace gradc
#endif
