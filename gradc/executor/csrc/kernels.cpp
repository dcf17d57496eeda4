#include "executor/csrc/kernels.h"

#include "executor/csrc/arguments.h"
#include "executor/csrc/cat.h"
#include "executor/csrc/few_classes.h"
#include "executor/csrc/fills.h"
#include "executor/csrc/iterated.h"
#include "executor/csrc/memory.h"
#include "executor/csrc/norms.h"
#include "executor/csrc/padded.h"
#include "executor/csrc/picks.h"
#include "executor/csrc/pointwise.h"
#include "executor/csrc/product.h"
#include "executor/csrc/rows.h"
#include "executor/csrc/short_sums.h"
#include "executor/csrc/sums.h"

#include <ATen/Operators.h>

#include <tuple>
#include <utility>
#include <unordered_map>

namespace gradc {
namespace {

void put(const Step& step, Frame& frame, size_t position, at::Tensor result) {
  if (const Index slot = step.outs[position]; slot >= 0) {
    frame.slots[slot] = std::move(result);
  }
}

void put_all(const Step& step, Frame& frame, at::Tensor result) {
  put(step, frame, 0, std::move(result));
}

template <class... Tensors>
void put_all(const Step& step, Frame& frame, std::tuple<Tensors...> results) {
  size_t position = 0;
  std::apply([&](auto&... result) { (put(step, frame, position++, std::move(result)), ...); }, results);
}

template <class Op, class Result, class... Parameters, size_t... I>
void call_with(Result (*)(Parameters...), std::index_sequence<I...>, const Step& step, Frame& frame) {
  std::tuple<Argument<Parameters>...> arguments{Argument<Parameters>(frame, step.operands[I])...};
  put_all(step, frame, Op::redispatch(c10::DispatchKeySet(c10::DispatchKey::CPU), std::get<I>(arguments).get()...));
}

template <class Result, class... Parameters>
constexpr auto indices(Result (*)(Parameters...)) {
  return std::index_sequence_for<Parameters...>{};
}

template <class Op>
void call(const Step& step, Frame& frame) {
  constexpr typename Op::ptr_schema signature = nullptr;
  call_with<Op>(signature, indices(signature), step, frame);
}

template <class Out, class Result, class... Parameters, size_t... I>
void call_into(Result (*)(Parameters...), std::index_sequence<I...>, const Step& step, Frame& frame) {
  at::Tensor memory = result_memory(step, frame);
  std::tuple<Argument<Parameters>...> arguments{Argument<Parameters>(frame, step.operands[I])...};
  Out::redispatch(c10::DispatchKeySet(c10::DispatchKey::CPU), std::get<I>(arguments).get()..., memory);
  put(step, frame, 0, std::move(memory));
}

template <class Op, class Out>
void call_out(const Step& step, Frame& frame) {
  constexpr typename Op::ptr_schema signature = nullptr;
  call_into<Out>(signature, indices(signature), step, frame);
}

void make_views(const Step& step, Frame& frame) {
  for (const View& view : step.views) {
    if (view.is_same) {
      frame.slots[view.slot] = frame.slots[view.base];
      continue;
    }
    const at::Tensor& base = frame.slots[view.base].toTensor();
    const Meta& meta = *frame.plan.metas[view.slot];
    at::Tensor made = at::detail::make_tensor<c10::TensorImpl>(
        c10::TensorImpl::VIEW, c10::Storage(base.storage()), base.key_set(), base.dtype());
    made.unsafeGetTensorImpl()->set_sizes_and_strides(meta.sizes, meta.strides, base.storage_offset() + view.offset);
    frame.slots[view.slot] = std::move(made);
  }
}

template <class Op>
std::string full_name() {
  const std::string name = Op::name, overload = Op::overload_name;
  return overload.empty() ? name : name + "." + overload;
}

using KernelTable = std::unordered_map<std::string, Kernel>;

template <class... Ops>
KernelTable table_of() {
  return {{full_name<Ops>(), &call<Ops>}...};
}

template <class Functional, class OutVariant>
struct Pair {
  using Op = Functional;
  using Out = OutVariant;
};

template <class... Pairs>
KernelTable out_table_of() {
  return {{full_name<typename Pairs::Op>(), &call_out<typename Pairs::Op, typename Pairs::Out>}...};
}

KernelTable make_kernel_table() {
  namespace ops = at::_ops;
  return table_of<
      // products
      ops::mm, ops::addmm, ops::bmm, ops::baddbmm, ops::convolution, ops::convolution_backward,
      // pointwise
      ops::add_Tensor, ops::add__Tensor, ops::sub_Tensor, ops::mul_Tensor, ops::mul__Tensor, ops::div_Tensor,
      ops::rsub_Scalar, ops::neg, ops::abs, ops::sign, ops::exp, ops::log, ops::sqrt, ops::rsqrt, ops::reciprocal,
      ops::sin, ops::cos, ops::pow_Tensor_Scalar, ops::clamp, ops::maximum, ops::minimum, ops::where_self, ops::addcmul,
      ops::addcdiv, ops::lerp_Scalar, ops::eq_Scalar, ops::eq_Tensor, ops::gt_Scalar, ops::ge_Scalar, ops::lt_Scalar,
      ops::le_Scalar, ops::ne_Scalar, ops::bitwise_not, ops::logical_not,
      // activations
      ops::tanh, ops::tanh_backward, ops::sigmoid, ops::sigmoid_backward, ops::relu, ops::threshold_backward, ops::gelu,
      ops::gelu_backward, ops::silu, ops::silu_backward, ops::elu, ops::elu_backward, ops::leaky_relu,
      ops::leaky_relu_backward, ops::softplus, ops::softplus_backward, ops::sigmoid_, ops::tanh_, ops::exp_,
      // reductions and norms
      ops::sum_dim_IntList, ops::sum, ops::mean, ops::mean_dim, ops::amax, ops::amin, ops::_softmax,
      ops::_softmax_backward_data, ops::_log_softmax, ops::_log_softmax_backward_data, ops::native_layer_norm,
      ops::native_layer_norm_backward, ops::native_batch_norm, ops::native_batch_norm_backward, ops::nll_loss_forward,
      ops::nll_loss_backward, ops::mse_loss, ops::mse_loss_backward, ops::slice_backward, ops::select_backward,
      // copies and indices
      ops::cat, ops::clone, ops::copy_, ops::fill__Scalar, ops::zero_, ops::embedding, ops::embedding_dense_backward,
      ops::gather, ops::scatter_add, ops::index_select, ops::max_pool2d_with_indices, ops::max_pool2d_with_indices_backward,
      // views
      ops::view, ops::_unsafe_view, ops::t, ops::transpose_int, ops::permute, ops::expand, ops::unsqueeze,
      ops::squeeze_dim, ops::slice_Tensor, ops::select_int, ops::detach, ops::alias, ops::as_strided>();
}

// Only ops whose out= variant has a CPU kernel of its own: many others compute a result and copy it.
KernelTable make_out_table() {
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

const KernelTable& out_table() {
  static const KernelTable table = make_out_table();
  return table;
}

Kernel look_up(const KernelTable& table, const std::string& op) {
  const auto found = table.find(op);
  return found == table.end() ? nullptr : found->second;
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
  return pays_out_variant(plan, step) ? Exact{look_up(out_table(), name_of(step))} : Exact();
}

std::vector<KernelRow> out_kernels() {
  KernelRow row{{}, &find_out_variant};
  for (const auto& [op, kernel] : out_table()) {
    row.ops.push_back(op);
  }
  return {std::move(row)};
}

// All rows. Of two that fit a step the first is faster.
std::vector<std::vector<KernelRow>> families() {
  return {product_kernels(), pointwise_kernels(), sum_kernels(),  short_sum_kernels(), few_classes_kernels(), pick_kernels(), row_kernels(),
          padded_kernels(),  cat_kernels(),       fill_kernels(), norm_kernels(),      iterated_kernels(),    out_kernels()};
}

using Finders = std::vector<Exact (*)(const Plan&, const Step&)>;

std::unordered_map<std::string, Finders> finders_by_op() {
  std::unordered_map<std::string, Finders> by_op;
  for (const auto& family : families()) {
    for (const KernelRow& row : family) {
      for (const std::string& op : row.ops) {
        by_op[op].push_back(row.find);
      }
    }
  }
  return by_op;
}

} // namespace

Kernel find_kernel(const std::string& op) {
  static const KernelTable table = make_kernel_table();
  return look_up(table, op);
}

std::string name_of(const Step& step) {
  return c10::toString(step.op.operator_name());
}

Exact find_exact(const Plan& plan, const Step& step) {
  if (!step.views.empty()) {
    return {&make_views};
  }
  static const auto by_op = finders_by_op();
  const auto found = by_op.find(name_of(step));
  if (found == by_op.end()) {
    return {};
  }
  for (const auto& find : found->second) {
    if (Exact exact = find(plan, step); exact.call) {
      return exact;
    }
  }
  return {};
}

std::vector<std::string> ops_with_out() {
  std::vector<std::string> names;
  for (const auto& [name, kernel] : out_table()) {
    names.push_back(name.substr(0, name.find('.')));
  }
  return names;
}

} // namespace gradc
