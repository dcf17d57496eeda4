// Typed calls: an op's kernel, without boxing its arguments and without computing where to dispatch.
#include "executor/core/csrc/arguments.h"
#include "executor/core/csrc/kernels.h"

#include <ATen/Operators.h>

#include <tuple>
#include <unordered_map>
#include <utility>

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
  put_all(step, frame, Op::redispatch(step.keys, std::get<I>(arguments).get()...));
}

template <class Op>
void call(const Step& step, Frame& frame) {
  constexpr typename Op::ptr_schema signature = nullptr;
  call_with<Op>(signature, indices(signature), step, frame);
}

using TypedTable = std::unordered_map<std::string, Kernel>;

template <class... Ops>
TypedTable table_of() {
  return {{full_name<Ops>(), &call<Ops>}...};
}

TypedTable make_kernel_table() {
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

} // namespace

Kernel find_typed(const std::string& op) {
  static const TypedTable table = make_kernel_table();
  const auto found = table.find(op);
  return found == table.end() ? nullptr : found->second;
}

std::string name_of(const Step& step) {
  return c10::toString(step.op.operator_name());
}

} // namespace gradc
