#include "executor/cpu/csrc/iterated.h"

#include "executor/cpu/csrc/direct.h"
#include "executor/cpu/csrc/loops.h"
#include "executor/cpu/csrc/memory.h"
#include "executor/cpu/csrc/numbers.h"

#include <ATen/NativeFunctions.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <memory>
#include <tuple>
#include <type_traits>
#include <utility>

namespace gradc {
namespace {

// ---- setting up

// Never read or written: by their addresses an iterator's operands are told apart.
at::Tensor tensor_without_memory(c10::IntArrayRef sizes, c10::IntArrayRef strides, c10::ScalarType dtype, size_t number) {
  void* const nowhere = reinterpret_cast<void*>((number + 1) << 40); // NOLINT(performance-no-int-to-ptr)
  return at::for_blob(nowhere, sizes).strides(strides).options(dtype).target_device(at::kCPU).make_tensor();
}

// An op's class, set up on `tensors`. What it makes is a tensor without memory, too.
template <class Op>
class SetUp final : public Op {
 public:
  SetUp(std::vector<at::Tensor> given, bool is_in_place) : tensors(std::move(given)) {
    if (is_in_place) {
      result = tensors[0];
    }
  }

  const at::Tensor& maybe_get_output(int64_t /*number*/) override {
    return result;
  }

  void set_output_raw_strided(
      int64_t number, c10::IntArrayRef sizes, c10::IntArrayRef strides, at::TensorOptions options) override {
    if (!result.defined()) {
      const auto contiguous = c10::contiguous_strides(sizes);
      const auto dtype = c10::typeMetaToScalarType(options.dtype());
      result = tensor_without_memory(sizes, strides.empty() ? c10::IntArrayRef(contiguous) : strides, dtype, tensors.size());
    }
    Op::set_output_raw_strided(number, sizes, strides, options);
  }

  bool makes(const Meta& meta) const {
    return result.sizes() == meta.sizes && result.strides() == meta.strides && result.scalar_type() == meta.dtype;
  }

  // For each operand of the iterator the number of its tensor, one behind them for the result. Nothing if it has others.
  std::vector<size_t> operands() const {
    std::vector<size_t> numbers;
    for (int i = 0; i < this->ntensors(); ++i) {
      const auto is_it = [&](const at::Tensor& tensor) { return tensor.const_data_ptr() == this->data_ptr(i); };
      const auto found = i == 0 ? tensors.end() : std::find_if(tensors.begin(), tensors.end(), is_it);
      if (found == tensors.end() && !is_it(result)) {
        return {};
      }
      numbers.push_back(found - tensors.begin());
    }
    return numbers.size() == tensors.size() + 1 ? numbers : std::vector<size_t>();
  }

  std::vector<at::Tensor> tensors;
  at::Tensor result; // undefined until the op is set up, but in place
};

template <class Op, class... Parameters>
class IteratedOp final : public Iterated {
 public:
  using Arguments = std::tuple<std::decay_t<Parameters>...>;

  IteratedOp(SetUp<Op> made, std::vector<size_t> operands, Arguments arguments)
      : made_(std::move(made)), operands_(std::move(operands)), arguments_(std::move(arguments)) {}
  ~IteratedOp() override {
    delete spare_.load();
  }
  IteratedOp(const IteratedOp&) = delete;
  IteratedOp& operator=(const IteratedOp&) = delete;
  IteratedOp(IteratedOp&&) = delete;
  IteratedOp& operator=(IteratedOp&&) = delete;

  void run(void* out, const void* const* inputs) const override {
    std::unique_ptr<SetUp<Op>> own(spare_.exchange(nullptr));
    if (!own) { // the first call, or another thread is at it
      own = std::make_unique<SetUp<Op>>(made_);
    }
    own->unsafe_replace_operand(0, out);
    for (size_t i = 1; i < operands_.size(); ++i) {
      own->unsafe_replace_operand(static_cast<int64_t>(i), const_cast<void*>(inputs[operands_[i]]));
    }
    std::apply([&](const auto&... arguments) { own->impl(arguments..., own->result); }, arguments_);
    delete spare_.exchange(own.release());
  }

 private:
  const SetUp<Op> made_;
  const std::vector<size_t> operands_;
  const Arguments arguments_;
  mutable std::atomic<SetUp<Op>*> spare_ = nullptr;
};

// ---- arguments

bool is_dtype_of_loops(c10::ScalarType dtype) {
  return dtype == c10::ScalarType::Float || dtype == c10::ScalarType::Double;
}

// The arguments of a step as its op's class takes them. Tensors are of one dtype: for others an iterator makes copies.
class Reader {
 public:
  Reader(const Plan& plan, const Step& step) : plan_(plan), step_(step) {}

  // Reads the next one. Nothing that can be used comes of it once `is_fit` is false.
  template <class T>
  T next() {
    const Operand& operand = step_.operands[next_++];
    if constexpr (std::is_same_v<T, at::Tensor>) {
      return tensor(operand);
    } else if constexpr (std::is_same_v<T, bool>) {
      return constant(operand, &c10::IValue::isBool) && plan_.constants[operand.index].boxed.toBool();
    } else {
      static_assert(std::is_same_v<T, at::Scalar>);
      return constant(operand, &c10::IValue::isScalar) ? plan_.constants[operand.index].boxed.toScalar() : at::Scalar();
    }
  }

  bool is_fit = true;
  std::vector<Index> slots;
  std::vector<at::Tensor> tensors;

 private:
  at::Tensor tensor(const Operand& operand) {
    const Meta* meta = meta_at(plan_, operand);
    is_fit = is_fit && meta && is_dtype_of_loops(meta->dtype) && num_bytes(*meta) > 0 && tensors.size() < most_direct_inputs &&
        (tensors.empty() || meta->dtype == tensors[0].scalar_type());
    if (!is_fit) {
      return {};
    }
    slots.push_back(operand.index);
    tensors.push_back(tensor_without_memory(meta->sizes, meta->strides, meta->dtype, tensors.size()));
    return tensors.back();
  }

  bool constant(const Operand& operand, bool (c10::IValue::*is)() const) {
    is_fit = is_fit && plan_.is_constant(operand, is);
    return is_fit;
  }

  const Plan& plan_;
  const Step& step_;
  size_t next_ = 0;
};

// ---- the call

void call_iterated(const Payload& payload, void* out, const void* const* inputs) {
  payload_as<std::shared_ptr<const Iterated>>(payload)->run(out, inputs);
}

template <class Op, class Base, class... Parameters>
Exact set_up(void (Base::*)(Parameters...), const Plan& plan, const Step& step, const Meta& result) {
  if (step.operands.size() != sizeof...(Parameters)) {
    return {};
  }
  Reader reader(plan, step);
  std::tuple<std::decay_t<Parameters>...> arguments{reader.next<std::decay_t<Parameters>>()...};
  if (!reader.is_fit) {
    return {};
  }
  SetUp<Op> op(reader.tensors, is_in_place(step));
  std::apply([&](const auto&... each) { op.meta(each...); }, arguments);
  auto operands = op.operands();
  if (!op.makes(result) || operands.empty()) {
    return {};
  }
  std::shared_ptr<const Iterated> iterated =
      std::make_shared<IteratedOp<Op, Parameters...>>(std::move(op), std::move(operands), std::move(arguments));
  return call_directly(step, &call_iterated, std::move(iterated), std::move(reader.slots));
}

template <class Op>
Exact find(const Plan& plan, const Step& step) {
  const Meta* result = result_meta(plan, step);
  if (!result || (!is_in_place(step) && !is_dense(*result))) {
    return {};
  }
  try {
    return set_up<Op>(&Op::meta, plan, step, *result);
  } catch (const c10::Error&) {
    return {}; // what eager refuses, it refuses when the step runs
  }
}

// A power of 0 or 1 is a fill or a copy, by the tensors.
Exact find_power(const Plan& plan, const Step& step) {
  const auto exponent = number_at(plan, step.operands[1]);
  return exponent && *exponent != 0 && *exponent != 1 ? find<at::native::structured_pow_Tensor_Scalar_out>(plan, step) : Exact();
}

// By an op's name out of place.
using Table = std::map<std::string, Exact (*)(const Plan&, const Step&)>;

// Only classes that look at nothing but their iterator: neither at the tensors, nor at torch's settings.
const Table& table() {
  using namespace at::native; // NOLINT(google-build-using-namespace)
  static const Table table{
      {"aten::exp", &find<structured_exp_out>},
      {"aten::exp2", &find<structured_exp2_out>},
      {"aten::expm1", &find<structured_expm1_out>},
      {"aten::log", &find<structured_log_out>},
      {"aten::log2", &find<structured_log2_out>},
      {"aten::log10", &find<structured_log10_out>},
      {"aten::log1p", &find<structured_log1p_out>},
      {"aten::sqrt", &find<structured_sqrt_out>},
      {"aten::rsqrt", &find<structured_rsqrt_out>},
      {"aten::reciprocal", &find<structured_reciprocal_out>},
      {"aten::neg", &find<structured_neg_out>},
      {"aten::sign", &find<structured_sign_out>},
      {"aten::sin", &find<structured_sin_out>},
      {"aten::cos", &find<structured_cos_out>},
      {"aten::tan", &find<structured_tan_out>},
      {"aten::atan", &find<structured_atan_out>},
      {"aten::sinh", &find<structured_sinh_out>},
      {"aten::cosh", &find<structured_cosh_out>},
      {"aten::tanh", &find<structured_tanh_out>},
      {"aten::tanh_backward", &find<structured_tanh_backward_out>},
      {"aten::sigmoid", &find<structured_sigmoid_out>},
      {"aten::sigmoid_backward", &find<structured_sigmoid_backward_out>},
      {"aten::erf", &find<structured_erf_out>},
      {"aten::erfc", &find<structured_erfc_out>},
      {"aten::floor", &find<structured_floor_out>},
      {"aten::ceil", &find<structured_ceil_out>},
      {"aten::round", &find<structured_round_out>},
      {"aten::trunc", &find<structured_trunc_out>},
      {"aten::frac", &find<structured_frac_out>},
      {"aten::silu", &find<structured_silu_out>},
      {"aten::silu_backward", &find<structured_silu_backward_out>},
      {"aten::mish", &find<structured_mish_out>},
      {"aten::elu", &find<structured_elu_out>},
      {"aten::elu_backward", &find<structured_elu_backward_out>},
      {"aten::leaky_relu", &find<structured_leaky_relu_out>},
      {"aten::leaky_relu_backward", &find<structured_leaky_relu_backward_out>},
      {"aten::softplus", &find<structured_softplus_out>},
      {"aten::softplus_backward", &find<structured_softplus_backward_out>},
      {"aten::hardsigmoid", &find<structured_hardsigmoid_out>},
      {"aten::hardsigmoid_backward", &find<structured_hardsigmoid_backward_out>},
      {"aten::threshold_backward", &find<structured_threshold_backward_out>},
      {"aten::add.Tensor", &find<structured_ufunc_add_CPU>},
      {"aten::sub.Tensor", &find<structured_sub_out>},
      {"aten::mul.Tensor", &find<structured_mul_out>},
      {"aten::div.Tensor", &find<structured_div_out>},
      {"aten::pow.Tensor_Tensor", &find<structured_pow_Tensor_Tensor_out>},
      {"aten::pow.Tensor_Scalar", &find_power},
      {"aten::atan2", &find<structured_atan2_out>},
      {"aten::maximum", &find<structured_maximum_out>},
      {"aten::minimum", &find<structured_minimum_out>},
      {"aten::addcmul", &find<structured_addcmul_out>},
      {"aten::addcdiv", &find<structured_addcdiv_out>},
      {"aten::lerp.Scalar", &find<structured_lerp_Scalar>},
      {"aten::lerp.Tensor", &find<structured_lerp_Tensor>},
      {"aten::eq.Tensor", &find<structured_eq_Tensor_out>},
      {"aten::ne.Tensor", &find<structured_ne_Tensor_out>},
      {"aten::lt.Tensor", &find<structured_lt_Tensor_out>},
      {"aten::le.Tensor", &find<structured_le_Tensor_out>},
      {"aten::gt.Tensor", &find<structured_gt_Tensor_out>},
      {"aten::ge.Tensor", &find<structured_ge_Tensor_out>},
  };
  return table;
}

} // namespace

std::vector<KernelRow> iterated_kernels() {
  std::vector<KernelRow> rows;
  for (const auto& [op, find] : table()) {
    rows.push_back({{op, in_place(op)}, find});
  }
  return rows;
}

std::vector<std::string> iterated_ops() {
  std::vector<std::string> names;
  for (const auto& [name, find] : table()) {
    names.push_back(name);
  }
  return names;
}

} // namespace gradc
