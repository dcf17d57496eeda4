#include "executor/cpu/csrc/kernels.h"

#include "executor/core/csrc/arguments.h"
#include "executor/core/csrc/kernels.h"
#include "executor/cpu/csrc/bfloat16_product.h"
#include "executor/cpu/csrc/cat.h"
#include "executor/cpu/csrc/convolution.h"
#include "executor/cpu/csrc/small_log_softmax.h"
#include "executor/cpu/csrc/fills.h"
#include "executor/cpu/csrc/iterated.h"
#include "executor/cpu/csrc/memory.h"
#include "executor/cpu/csrc/norms.h"
#include "executor/cpu/csrc/onednn_product.h"
#include "executor/cpu/csrc/slice_backward.h"
#include "executor/cpu/csrc/gather_scatter.h"
#include "executor/cpu/csrc/pointwise.h"
#include "executor/cpu/csrc/product.h"
#include "executor/cpu/csrc/index_rows.h"
#include "executor/cpu/csrc/short_sums.h"
#include "executor/cpu/csrc/fused_block.h"
#include "executor/cpu/csrc/sums.h"

#include <ATen/Operators.h>

#include <tuple>
#include <unordered_map>
#include <utility>

namespace gradc {
namespace {

// ---- out= variants

template <class Out, class Result, class... Parameters, size_t... I>
void call_into(Result (*)(Parameters...), std::index_sequence<I...>, const Step& step, Frame& frame) {
  at::Tensor memory = result_memory(step, frame);
  std::tuple<Argument<Parameters>...> arguments{Argument<Parameters>(frame, step.operands[I])...};
  Out::redispatch(c10::DispatchKeySet(c10::DispatchKey::CPU), std::get<I>(arguments).get()..., memory);
  frame.slots[step.outs[0]] = std::move(memory);
}

template <class Op, class Out>
void call_out(const Step& step, Frame& frame) {
  constexpr typename Op::ptr_schema signature = nullptr;
  call_into<Out>(signature, indices(signature), step, frame);
}

using OutTable = std::unordered_map<std::string, Kernel>;

template <class Functional, class OutVariant>
struct Pair {
  using Op = Functional;
  using Out = OutVariant;
};

template <class... Pairs>
OutTable out_table_of() {
  return {{full_name<typename Pairs::Op>(), &call_out<typename Pairs::Op, typename Pairs::Out>}...};
}

// Only ops whose out= variant has a CPU kernel of its own: many others compute a result and copy it.
OutTable make_out_table() {
  namespace ops = at::_ops;
  return out_table_of<
      Pair<ops::mm, ops::mm_out>, Pair<ops::addmm, ops::addmm_out>, Pair<ops::bmm, ops::bmm_out>,
      Pair<ops::baddbmm, ops::baddbmm_out>, Pair<ops::add_Tensor, ops::add_out>, Pair<ops::sub_Tensor, ops::sub_out>,
      Pair<ops::mul_Tensor, ops::mul_out>, Pair<ops::div_Tensor, ops::div_out>, Pair<ops::neg, ops::neg_out>,
      Pair<ops::exp, ops::exp_out>, Pair<ops::log, ops::log_out>, Pair<ops::sqrt, ops::sqrt_out>,
      Pair<ops::rsqrt, ops::rsqrt_out>, Pair<ops::sin, ops::sin_out>, Pair<ops::cos, ops::cos_out>,
      Pair<ops::pow_Tensor_Scalar, ops::pow_Tensor_Scalar_out>, Pair<ops::where_self, ops::where_self_out>,
      Pair<ops::tanh, ops::tanh_out>, Pair<ops::tanh_backward, ops::tanh_backward_grad_input>,
      Pair<ops::sigmoid, ops::sigmoid_out>, Pair<ops::sigmoid_backward, ops::sigmoid_backward_grad_input>,
      Pair<ops::threshold_backward, ops::threshold_backward_grad_input>, Pair<ops::gelu, ops::gelu_out>,
      Pair<ops::gelu_backward, ops::gelu_backward_grad_input>, Pair<ops::silu, ops::silu_out>,
      Pair<ops::silu_backward, ops::silu_backward_grad_input>, Pair<ops::sum_dim_IntList, ops::sum_IntList_out>,
      Pair<ops::mean_dim, ops::mean_out>, Pair<ops::_softmax, ops::_softmax_out>,
      Pair<ops::_softmax_backward_data, ops::_softmax_backward_data_out>, Pair<ops::_log_softmax, ops::_log_softmax_out>,
      Pair<ops::_log_softmax_backward_data, ops::_log_softmax_backward_data_out>, Pair<ops::cat, ops::cat_out>>();
}

const OutTable& out_table() {
  static const OutTable table = make_out_table();
  return table;
}

// True if the result's memory is at hand, or cheap to get.
bool pays_out_variant(const Plan& plan, const Step& step) {
  if (step.outs.size() != 1 || step.outs[0] < 0 || !plan.metas[step.outs[0]] || !is_dense(*plan.metas[step.outs[0]])) {
    return false;
  }
  const size_t size = num_bytes(*plan.metas[step.outs[0]]);
  return size > 0 && (step.reuse >= 0 || size <= small_bytes);
}

Exact find_out_variant(const Plan& plan, const Step& step) {
  return pays_out_variant(plan, step) ? Exact{out_table().at(name_of(step))} : Exact();
}

std::vector<KernelRow> out_kernels() {
  KernelRow row{{}, &find_out_variant};
  for (const auto& [op, kernel] : out_table()) {
    row.ops.push_back(op);
  }
  return {std::move(row)};
}

// ---- the table

// Of two that fit a step the first is faster.
const KernelTable& exact_kernels() {
  static const KernelTable table({
      product_kernels(), bfloat16_product_kernels(), onednn_product_kernels(), pointwise_kernels(), sum_kernels(), short_sum_kernels(), few_classes_kernels(), pick_kernels(), row_kernels(),
      padded_kernels(), cat_kernels(), fill_kernels(), norm_kernels(), convolution_kernels(), iterated_kernels(), out_kernels(),
  });
  return table;
}

} // namespace

const DeviceKernels& cpu_kernels() {
  static const DeviceKernels kernels{c10::DeviceType::CPU, &exact_kernels, &has_full_precision, &find_stretches, &can_run, &run_stretch};
  return kernels;
}

std::vector<std::string> ops_with_out() {
  std::vector<std::string> names;
  for (const auto& [name, kernel] : out_table()) {
    names.push_back(name.substr(0, name.find('.')));
  }
  return names;
}

} // namespace gradc
