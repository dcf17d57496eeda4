#include "executor/cpu/csrc/pointwise.h"

#include "executor/cpu/csrc/direct.h"
#include "executor/cpu/csrc/lengths.h"
#include "executor/cpu/csrc/memory.h"
#include "executor/cpu/csrc/numbers.h"

#include <ATen/Parallel.h>
#include <ATen/Version.h>

#include <algorithm>
#include <array>

namespace gradc {
namespace {

using Input = Pointwise::Input;

constexpr int64_t max_spread = 8192;    // beyond, the copy costs more than ATen's iterator

// ---- running

// Each of `size` numbers so many times.
template <class T>
T* repeat(T* out, const T* in, int64_t size, int64_t stride, int64_t times) {
  with_length(times, [&](auto count) {
    for (int64_t i = 0; i < size; ++i) {
      out = std::fill_n(out, static_cast<int64_t>(count), in[i * stride]);
    }
  });
  return out;
}

template <class T>
T* spread(T* out, const T* in, const Input& input, size_t dimension) {
  const int64_t size = input.sizes[dimension], stride = input.strides[dimension];
  if (dimension + 2 == input.sizes.size() && input.strides.back() == 0) {
    return repeat(out, in, size, stride, input.sizes.back());
  }
  if (dimension + 1 < input.sizes.size()) {
    for (int64_t i = 0; i < size; ++i) {
      out = spread(out, in + i * stride, input, dimension + 1);
    }
    return out;
  }
  if (stride == 1) {
    return std::copy_n(in, size, out);
  }
  if (stride == 0) {
    return std::fill_n(out, size, *in);
  }
  for (int64_t i = 0; i < size; ++i) {
    out[i] = in[i * stride];
  }
  return out + size;
}

template <class T>
const void* spread_into(std::byte* memory, const void* in, const Input& input) {
  spread(reinterpret_cast<T*>(memory), static_cast<const T*>(in), input, 0);
  return memory;
}

std::byte* scratch(size_t position) {
  thread_local std::array<std::unique_ptr<std::byte[]>, most_loop_inputs> blocks;
  if (!blocks[position]) {
    blocks[position].reset(new std::byte[max_spread * sizeof(double)]);
  }
  return blocks[position].get();
}

const void* spread_into_scratch(const Input& input, size_t position, const void* in) {
  switch (input.element_size) {
    case 1:
      return spread_into<uint8_t>(scratch(position), in, input);
    case 4:
      return spread_into<uint32_t>(scratch(position), in, input);
    default:
      return spread_into<uint64_t>(scratch(position), in, input);
  }
}

using Inputs = std::array<const void*, most_loop_inputs>;

Inputs loop_inputs(const Pointwise& pointwise, const void* const* given) {
  Inputs inputs{};
  for (size_t i = 0; i < pointwise.inputs.size(); ++i) {
    const Input& input = pointwise.inputs[i];
    if (!input.element_size) {
      inputs[i] = input.number.data();
    } else {
      inputs[i] = input.sizes.empty() ? *given : spread_into_scratch(input, i, *given);
      ++given;
    }
  }
  return inputs;
}

// Each element is computed by itself, so that threads change no bit.
void call_pointwise(const Payload& payload, void* out, const void* const* given) {
  const auto& pointwise = payload_as<Pointwise>(payload);
  const Inputs inputs = loop_inputs(pointwise, given);
  if (pointwise.size <= most_on_one_thread) {
    return pointwise.loop(out, inputs.data(), pointwise.size);
  }
  at::parallel_for(0, pointwise.size, most_on_one_thread, [&](int64_t begin, int64_t end) {
    Inputs part{};
    for (size_t i = 0; i < pointwise.inputs.size(); ++i) {
      part[i] = static_cast<const std::byte*>(inputs[i]) + begin * pointwise.inputs[i].element_size;
    }
    pointwise.loop(static_cast<std::byte*>(out) + begin * pointwise.element_size, part.data(), end - begin);
  });
}

// Row by row, where each input has rows of that size whose elements lie side by side: nothing has to be copied.
void call_by_rows(const Payload& payload, void* out, const void* const* given) {
  const auto& pointwise = payload_as<Pointwise>(payload);
  const int64_t row_size = pointwise.row_size;
  for (int64_t begin = 0; begin < pointwise.size; begin += row_size) {
    Inputs row{};
    const void* const* next = given;
    for (size_t i = 0; i < pointwise.inputs.size(); ++i) {
      const Input& input = pointwise.inputs[i];
      if (!input.element_size) {
        row[i] = input.number.data();
        continue;
      }
      const int64_t start = input.sizes.empty() ? begin : begin / row_size * input.strides[0];
      row[i] = static_cast<const std::byte*>(*next++) + start * static_cast<int64_t>(input.element_size);
    }
    pointwise.loop(static_cast<std::byte*>(out) + begin * static_cast<int64_t>(pointwise.element_size), row.data(), row_size);
  }
}

// ---- preparing

// The size of the rows that all inputs have which do not lie as the result; 0 where they have none.
int64_t row_size_of(const Pointwise& pointwise) {
  constexpr int64_t least = 8; // shorter ones are copied sooner than looped over
  int64_t found = 0;
  for (const Input& input : pointwise.inputs) {
    if (input.element_size == 0 || input.sizes.empty()) {
      continue;
    }
    const bool has_rows = input.sizes.size() == 2 && input.strides[1] == 1 && input.sizes[1] >= least;
    if (!has_rows || (found && input.sizes[1] != found)) {
      return 0;
    }
    found = input.sizes[1];
  }
  return found;
}

bool is_alike(const Meta& a, const Meta& b) {
  return a.sizes == b.sizes && a.strides == b.strides;
}

// Neighbouring dimensions that one stride covers become one.
void add_dimension(Input& input, int64_t size, int64_t stride) {
  if (size == 1) {
    return;
  }
  if (!input.sizes.empty() && input.strides.back() == size * stride) {
    input.sizes.back() *= size;
    input.strides.back() = stride;
  } else {
    input.sizes.push_back(size);
    input.strides.push_back(stride);
  }
}

std::optional<Input> tensor_input(const Plan& plan, const Operand& operand, c10::ScalarType dtype, const Meta& result) {
  if (operand.kind != Operand::Kind::slot || !plan.metas[operand.index] || plan.metas[operand.index]->dtype != dtype) {
    return {};
  }
  const Meta& meta = *plan.metas[operand.index];
  Input input{c10::elementSize(meta.dtype)};
  if (is_alike(meta, result)) {
    return input;
  }
  if (!is_contiguous(result) || c10::multiply_integers(result.sizes) > max_spread || meta.sizes.size() > result.sizes.size()) {
    return {};
  }
  const size_t missing = result.sizes.size() - meta.sizes.size();
  for (size_t i = 0; i < result.sizes.size(); ++i) {
    const bool is_broadcast = i < missing || meta.sizes[i - missing] == 1;
    add_dimension(input, result.sizes[i], is_broadcast ? 0 : meta.strides[i - missing]);
  }
  if (input.sizes.empty()) { // one element
    input.sizes.push_back(1);
    input.strides.push_back(0);
  }
  return input;
}

std::optional<Input> number_input(const Plan& plan, const Operand& operand, c10::ScalarType dtype) {
  const auto number = number_at(plan, operand);
  const auto bytes = number ? bytes_of(*number, dtype) : std::nullopt;
  if (!bytes) {
    return {};
  }
  Input input;
  input.number = *bytes;
  return input;
}

bool has_fused_kernels() {
  const auto capability = at::get_cpu_capability();
  return capability == "AVX2" || capability == "AVX512";
}

Loop choose(const Loops& loops, c10::ScalarType dtype, bool with_number) {
  switch (dtype) {
    case c10::ScalarType::Float:
      return with_number ? loops.with_number_float : loops.on_float;
    case c10::ScalarType::Double:
      return with_number ? loops.with_number_double : loops.on_double;
    case c10::ScalarType::Bool:
      return with_number ? nullptr : loops.on_bool;
    default:
      return nullptr;
  }
}

// The dtype of the op's tensors that are not masks: the first one's.
std::optional<c10::ScalarType> loop_dtype(const Plan& plan, const Step& step, const Loops& loops) {
  const size_t first = std::min(loops.parameters.find_first_of("Tt"), loops.parameters.size());
  const Operand& operand = step.operands[first < loops.parameters.size() ? first : 0];
  if (operand.kind != Operand::Kind::slot || !plan.metas[operand.index]) {
    return {};
  }
  return plan.metas[operand.index]->dtype;
}

std::vector<Operand> operands_of(const Step& step) {
  std::vector<Operand> operands = step.operands;
  if (step.known) {
    operands.push_back(*step.known);
  }
  return operands;
}

std::optional<Pointwise> prepare(const Plan& plan, const Step& step, const Loops& loops, const Meta& result) {
  const auto operands = operands_of(step);
  const auto dtype = loop_dtype(plan, step, loops);
  Pointwise made{nullptr, {}, c10::multiply_integers(result.sizes), c10::elementSize(result.dtype)};
  if (!dtype || operands.size() != loops.parameters.size() || made.size == 0 ||
      result.dtype != (loops.makes_bool ? c10::ScalarType::Bool : *dtype)) {
    return {};
  }
  bool with_number = false;
  for (size_t i = 0; i < operands.size(); ++i) {
    const Operand& operand = operands[i];
    const char parameter = loops.parameters[i];
    if (parameter == '0' || parameter == '1') {
      if (number_at(plan, operand) != std::optional<double>(parameter - '0')) {
        return {};
      }
      continue;
    }
    std::optional<Input> input;
    if (parameter != 'N') {
      input = tensor_input(plan, operand, parameter == 'B' ? c10::ScalarType::Bool : *dtype, result);
    }
    if (parameter == 'N' || (parameter == 't' && !input)) {
      input = number_input(plan, operand, *dtype);
      with_number = with_number || parameter == 't';
    }
    if (!input) {
      return {};
    }
    made.inputs.push_back(std::move(*input));
  }
  made.loop = choose(loops, *dtype, with_number);
  made.row_size = row_size_of(made);
  return made.loop ? std::optional(std::move(made)) : std::nullopt;
}

// The operands that are slots, in their order.
std::vector<Index> slots_of(const Step& step) {
  std::vector<Index> slots;
  for (const Operand& operand : operands_of(step)) {
    if (operand.kind == Operand::Kind::slot) {
      slots.push_back(operand.index);
    }
  }
  return slots;
}

Exact find_pointwise(const Plan& plan, const Step& step) {
  const Loops* loops = find_loops(name_of(step));
  const Meta* result = result_meta(plan, step);
  if (!loops || !result || !is_dense(*result) || (loops->is_fused && !has_fused_kernels())) {
    return {};
  }
  auto prepared = prepare(plan, step, *loops, *result);
  if (!prepared) {
    return {};
  }
  const Direct direct = prepared->row_size ? &call_by_rows : &call_pointwise;
  return call_directly(step, direct, std::move(*prepared), slots_of(step));
}

} // namespace

std::vector<KernelRow> pointwise_kernels() {
  return {{ops_with_loops(), &find_pointwise}};
}

} // namespace gradc
