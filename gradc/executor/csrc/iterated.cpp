#include "executor/csrc/iterated.h"

#include "executor/csrc/direct.h"
#include "executor/csrc/loops.h"
#include "executor/csrc/memory.h"
#include "executor/csrc/numbers.h"

#include <ATen/NativeFunctions.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <atomic>
#include <tuple>
#include <type_traits>
#include <unordered_map>
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

void call_iterated(const Step& step, void* out, const void* const* inputs) {
  step.iterated->run(out, inputs);
}

template <class Op, class Base, class... Parameters>
bool set_up(void (Base::*)(Parameters...), const Plan& plan, Step& step) {
  if (step.operands.size() != sizeof...(Parameters)) {
    return false;
  }
  Reader reader(plan, step);
  std::tuple<std::decay_t<Parameters>...> arguments{reader.next<std::decay_t<Parameters>>()...};
  if (!reader.is_fit) {
    return false;
  }
  SetUp<Op> op(reader.tensors, is_in_place(step));
  std::apply([&](const auto&... each) { op.meta(each...); }, arguments);
  auto operands = op.operands();
  if (!op.makes(*result_meta(plan, step)) || operands.empty()) {
    return false;
  }
  step.iterated = std::make_shared<IteratedOp<Op, Parameters...>>(std::move(op), std::move(operands), std::move(arguments));
  step.direct_inputs = std::move(reader.slots);
  return true;
}

template <class Op>
bool set_up(const Plan& plan, Step& step) {
  return set_up<Op>(&Op::meta, plan, step);
}

// A power of 0 or 1 is a fill or a copy, by the tensors.
bool set_up_power(const Plan& plan, Step& step) {
  const auto exponent = number_at(plan, step.operands[1]);
  return exponent && *exponent != 0 && *exponent != 1 && set_up<at::native::structured_pow_Tensor_Scalar_out>(plan, step);
}

using Table = std::unordered_map<std::string, bool (*)(const Plan&, Step&)>;

// Only classes that look at nothing but their iterator: neither at the tensors, nor at torch's settings.
const Table& table() {
  using namespace at::native; // NOLINT(google-build-using-namespace)
  static const Table table{
      {"aten::exp", &set_up<structured_exp_out>},
      {"aten::exp2", &set_up<structured_exp2_out>},
      {"aten::expm1", &set_up<structured_expm1_out>},
      {"aten::log", &set_up<structured_log_out>},
      {"aten::log2", &set_up<structured_log2_out>},
      {"aten::log10", &set_up<structured_log10_out>},
      {"aten::log1p", &set_up<structured_log1p_out>},
      {"aten::sqrt", &set_up<structured_sqrt_out>},
      {"aten::rsqrt", &set_up<structured_rsqrt_out>},
      {"aten::reciprocal", &set_up<structured_reciprocal_out>},
      {"aten::neg", &set_up<structured_neg_out>},
      {"aten::sign", &set_up<structured_sign_out>},
      {"aten::sin", &set_up<structured_sin_out>},
      {"aten::cos", &set_up<structured_cos_out>},
      {"aten::tan", &set_up<structured_tan_out>},
      {"aten::atan", &set_up<structured_atan_out>},
      {"aten::sinh", &set_up<structured_sinh_out>},
      {"aten::cosh", &set_up<structured_cosh_out>},
      {"aten::tanh", &set_up<structured_tanh_out>},
      {"aten::tanh_backward", &set_up<structured_tanh_backward_out>},
      {"aten::sigmoid", &set_up<structured_sigmoid_out>},
      {"aten::sigmoid_backward", &set_up<structured_sigmoid_backward_out>},
      {"aten::erf", &set_up<structured_erf_out>},
      {"aten::erfc", &set_up<structured_erfc_out>},
      {"aten::floor", &set_up<structured_floor_out>},
      {"aten::ceil", &set_up<structured_ceil_out>},
      {"aten::round", &set_up<structured_round_out>},
      {"aten::trunc", &set_up<structured_trunc_out>},
      {"aten::frac", &set_up<structured_frac_out>},
      {"aten::silu", &set_up<structured_silu_out>},
      {"aten::silu_backward", &set_up<structured_silu_backward_out>},
      {"aten::mish", &set_up<structured_mish_out>},
      {"aten::elu", &set_up<structured_elu_out>},
      {"aten::elu_backward", &set_up<structured_elu_backward_out>},
      {"aten::leaky_relu", &set_up<structured_leaky_relu_out>},
      {"aten::leaky_relu_backward", &set_up<structured_leaky_relu_backward_out>},
      {"aten::softplus", &set_up<structured_softplus_out>},
      {"aten::softplus_backward", &set_up<structured_softplus_backward_out>},
      {"aten::hardsigmoid", &set_up<structured_hardsigmoid_out>},
      {"aten::hardsigmoid_backward", &set_up<structured_hardsigmoid_backward_out>},
      {"aten::threshold_backward", &set_up<structured_threshold_backward_out>},
      {"aten::add.Tensor", &set_up<structured_ufunc_add_CPU>},
      {"aten::sub.Tensor", &set_up<structured_sub_out>},
      {"aten::mul.Tensor", &set_up<structured_mul_out>},
      {"aten::div.Tensor", &set_up<structured_div_out>},
      {"aten::pow.Tensor_Tensor", &set_up<structured_pow_Tensor_Tensor_out>},
      {"aten::pow.Tensor_Scalar", &set_up_power},
      {"aten::atan2", &set_up<structured_atan2_out>},
      {"aten::maximum", &set_up<structured_maximum_out>},
      {"aten::minimum", &set_up<structured_minimum_out>},
      {"aten::addcmul", &set_up<structured_addcmul_out>},
      {"aten::addcdiv", &set_up<structured_addcdiv_out>},
      {"aten::lerp.Scalar", &set_up<structured_lerp_Scalar>},
      {"aten::lerp.Tensor", &set_up<structured_lerp_Tensor>},
      {"aten::eq.Tensor", &set_up<structured_eq_Tensor_out>},
      {"aten::ne.Tensor", &set_up<structured_ne_Tensor_out>},
      {"aten::lt.Tensor", &set_up<structured_lt_Tensor_out>},
      {"aten::le.Tensor", &set_up<structured_le_Tensor_out>},
      {"aten::gt.Tensor", &set_up<structured_gt_Tensor_out>},
      {"aten::ge.Tensor", &set_up<structured_ge_Tensor_out>},
  };
  return table;
}

} // namespace

Kernel find_iterated_kernel(const Plan& plan, Step& step, const std::string& op) {
  const auto found = table().find(out_of_place(op));
  const Meta* result = result_meta(plan, step);
  if (found == table().end() || !result || (!is_in_place(step) && !is_dense(*result))) {
    return nullptr;
  }
  try {
    return found->second(plan, step) ? call_directly(step, &call_iterated, {}) : nullptr;
  } catch (const c10::Error&) {
    return nullptr; // what eager refuses, it refuses when the step runs
  }
}

std::vector<std::string> iterated_ops() {
  std::vector<std::string> names;
  for (const auto& [name, set_up] : table()) {
    names.push_back(name);
  }
  return names;
}

} // namespace gradc
