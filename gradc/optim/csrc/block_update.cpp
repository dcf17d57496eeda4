#include "optim/csrc/block_update.h"

#include "csrc/devices.h"
#include "csrc/sizes.h"
#include "executor/cpu/csrc/loops.h"

#include <ATen/Parallel.h>
#include <ATen/Version.h>
#include <ATen/ops/empty_like.h>

#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <stdexcept>

namespace gradc {
namespace {

constexpr int64_t block_size = 1024;
constexpr int64_t grain_size = 32768; // as at::internal::GRAIN_SIZE: below it, one thread
constexpr int64_t most_elements = 1 << 18; // of a group whose update keeps other threads of Python waiting
constexpr size_t most_values = Update::most_values;

template <class T>
struct Block {
  T* out;
  const T *a, *b, *c;
  T number;
  int64_t size;
};

#define GRADC_BLOCK_LOOP(name, expression)    \
  template <class T, bool is_fused>           \
  GRADC_WIDE void name(const Block<T>& block) { \
    T* out = block.out;                       \
    const T *a = block.a, *b = block.b, *c = block.c; \
    const T number = block.number;            \
    (void)a, (void)b, (void)c, (void)number;  \
    for (int64_t i = 0; i < block.size; ++i) { \
      out[i] = expression;                    \
    }                                         \
  }

template <bool is_fused, class T>
inline __attribute__((always_inline)) T multiply_add(T x, T y, T z) {
  return is_fused ? std::fma(x, y, z) : x * y + z;
}

GRADC_BLOCK_LOOP(neg, -a[i])
GRADC_BLOCK_LOOP(abs, std::abs(a[i]))
GRADC_BLOCK_LOOP(reciprocal, T(1) / a[i])
GRADC_BLOCK_LOOP(mul_values, a[i] * b[i])
GRADC_BLOCK_LOOP(div_values, a[i] / b[i])
GRADC_BLOCK_LOOP(mul, a[i] * number)
GRADC_BLOCK_LOOP(add_number, a[i] + number)
GRADC_BLOCK_LOOP(div, a[i] / number)
GRADC_BLOCK_LOOP(add, (multiply_add<is_fused, T>(b[i], number, a[i])))
GRADC_BLOCK_LOOP(lerp_near, (multiply_add<is_fused, T>(number, b[i] - a[i], a[i])))
GRADC_BLOCK_LOOP(lerp_far, (multiply_add<is_fused, T>(number - 1, b[i] - a[i], b[i])))
GRADC_BLOCK_LOOP(addcmul, (multiply_add<is_fused, T>(number * b[i], c[i], a[i])))
GRADC_BLOCK_LOOP(addcdiv, a[i] + number * b[i] / c[i])
GRADC_BLOCK_LOOP(maximum, a[i] != a[i] || a[i] > b[i] ? a[i] : b[i])

// ATen takes square roots by MKL, where torch has it, and those are not always the nearest number.
template <class T>
using VectorSqrt = void (*)(int32_t size, const T* in, T* out, int64_t mode);
constexpr int64_t vector_mode = 0x2 | 0x140000 | 0x100; // high accuracy, subnormals kept, no errors reported

template <class T>
void sqrt(const Block<T>& block) {
  static const auto of_mkl =
      reinterpret_cast<VectorSqrt<T>>(dlsym(RTLD_DEFAULT, std::is_same_v<T, float> ? "vmsSqrt" : "vmdSqrt"));
  if (of_mkl) {
    return of_mkl(static_cast<int32_t>(block.size), block.a, block.out, vector_mode);
  }
  for (int64_t i = 0; i < block.size; ++i) {
    block.out[i] = std::sqrt(block.a[i]);
  }
}

template <class T, bool is_fused>
void run_op(UpdateOp op, const Block<T>& block) {
  switch (op) {
    case UpdateOp::neg:
      return neg<T, is_fused>(block);
    case UpdateOp::abs:
      return abs<T, is_fused>(block);
    case UpdateOp::reciprocal:
      return reciprocal<T, is_fused>(block);
    case UpdateOp::mul_values:
      return mul_values<T, is_fused>(block);
    case UpdateOp::div_values:
      return div_values<T, is_fused>(block);
    case UpdateOp::mul:
      return mul<T, is_fused>(block);
    case UpdateOp::add_number:
      return add_number<T, is_fused>(block);
    case UpdateOp::div:
      return div<T, is_fused>(block);
    case UpdateOp::sqrt:
      return sqrt<T>(block);
    case UpdateOp::add:
      return add<T, is_fused>(block);
    case UpdateOp::lerp: // from the nearer end, as ATen does
      return std::abs(block.number) < T(0.5) ? lerp_near<T, is_fused>(block) : lerp_far<T, is_fused>(block);
    case UpdateOp::addcmul:
      return addcmul<T, is_fused>(block);
    case UpdateOp::addcdiv:
      return addcdiv<T, is_fused>(block);
    case UpdateOp::maximum:
      return maximum<T, is_fused>(block);
  }
}

// mul and addcmul of one value, as of a moving average of squares.
template <class T, bool is_fused>
GRADC_WIDE void average(T* out, const T* b, const T* c, T kept, T factor, int64_t size) {
  for (int64_t i = 0; i < size; ++i) {
    out[i] = multiply_add<is_fused, T>(factor * b[i], c[i], out[i] * kept);
  }
}

// div, add_number and addcdiv, as of a step by what was averaged.
template <class T>
GRADC_WIDE void descend(T* out, const T* b, const T* c, T divisor, T added, T factor, int64_t size) {
  for (int64_t i = 0; i < size; ++i) {
    out[i] = out[i] + factor * b[i] / (c[i] / divisor + added);
  }
}

// Of this thread, while this lives: MKL would begin and end a parallel region for each block.
class SerialMkl {
 public:
  // torch sets MKL's threads where a thread comes to its first loop, and takes the number for its own: before this does.
  SerialMkl() {
    at::parallel_for(0, 1, 1, [](int64_t, int64_t) {});
    before_ = set(1);
  }
  ~SerialMkl() {
    set(before_);
  }
  SerialMkl(const SerialMkl&) = delete;
  SerialMkl& operator=(const SerialMkl&) = delete;
  SerialMkl(SerialMkl&&) = delete;
  SerialMkl& operator=(SerialMkl&&) = delete;

 private:
  static int set(int num_threads) {
    static const auto of_mkl = reinterpret_cast<int (*)(int)>(dlsym(RTLD_DEFAULT, "MKL_Set_Num_Threads_Local"));
    return of_mkl ? of_mkl(num_threads) : 0;
  }
  int before_; // 0: what the process has
};

using Pointers = std::array<void*, most_values>;

// All operations on the elements from `begin` to `end`, block by block.
template <class T, bool is_fused>
void update_range(
    const std::vector<Pass>& passes, size_t num_operands, size_t num_scratch, const Pointers& operands,
    const std::vector<double>& numbers, int64_t begin, int64_t end) {
  thread_local std::vector<T> scratch;
  scratch.resize(num_scratch * block_size);
  std::array<T*, most_values> values{};
  for (size_t i = 0; i < num_scratch; ++i) {
    values[num_operands + i] = scratch.data() + i * block_size;
  }
  for (int64_t start = begin; start < end; start += block_size) {
    for (size_t i = 0; i < num_operands; ++i) {
      values[i] = static_cast<T*>(operands[i]) + start;
    }
    const auto at = [&values](int32_t position) -> T* { return position < 0 ? nullptr : values[position]; };
    const auto value = [&numbers](int32_t number) { return number < 0 ? T(1) : static_cast<T>(numbers[number]); };
    const int64_t size = std::min(block_size, end - start);
    for (const auto& [kind, operation, more] : passes) {
      const auto& [op, out, a, b, c, number] = operation;
      switch (kind) {
        case Pass::Kind::one:
          run_op<T, is_fused>(op, {at(out), at(a), at(b), at(c), value(number), size});
          break;
        case Pass::Kind::average:
          average<T, is_fused>(at(out), at(b), at(c), value(more[0]), value(number), size);
          break;
        case Pass::Kind::descent:
          descend<T>(at(out), at(b), at(c), value(more[0]), value(more[1]), value(number), size);
          break;
      }
    }
  }
}

// mul(x), then addcmul(x, b, c), which reads x nowhere else.
bool is_average(const Operation& first, const Operation& second) {
  return first.op == UpdateOp::mul && second.op == UpdateOp::addcmul && first.out == first.a && first.number >= 0 &&
      second.out == first.out && second.a == first.out && second.b != first.out && second.c != first.out;
}

// x = y / number; x += number; z = addcdiv(z, b, x), where x is a scratch value that nothing reads later.
bool is_descent(const Operation& first, const Operation& second, const Operation& third, int32_t num_operands) {
  return first.op == UpdateOp::div && second.op == UpdateOp::add_number && third.op == UpdateOp::addcdiv && first.out >= num_operands &&
      second.a == first.out && second.out == first.out && third.c == first.out && third.a == third.out && third.out != first.out &&
      third.out != first.a && third.b != first.out && third.b != third.out;
}

bool is_read(const std::vector<Operation>& operations, size_t from, int32_t value) {
  return std::any_of(operations.begin() + from, operations.end(), [value](const Operation& operation) {
    return operation.a == value || operation.b == value || operation.c == value;
  });
}

std::vector<Pass> passes_of(const std::vector<Operation>& operations, int32_t num_operands) {
  std::vector<Pass> passes;
  for (size_t i = 0; i < operations.size();) {
    const Operation* at = &operations[i];
    const size_t left = operations.size() - i;
    if (left >= 2 && is_average(at[0], at[1])) {
      passes.push_back({Pass::Kind::average, at[1], {at[0].number, -1}});
      i += 2;
    } else if (left >= 3 && is_descent(at[0], at[1], at[2], num_operands) && !is_read(operations, i + 3, at[0].out)) {
      Operation whole = at[2];
      whole.c = at[0].a;
      passes.push_back({Pass::Kind::descent, whole, {at[0].number, at[1].number}});
      i += 3;
    } else {
      passes.push_back({Pass::Kind::one, at[0], {-1, -1}});
      i += 1;
    }
  }
  return passes;
}

bool is_fused_machine() {
  static const auto capability = at::get_cpu_capability();
  return capability == "AVX2" || capability == "AVX512";
}

} // namespace

BlockUpdate::BlockUpdate(size_t num_operands, size_t num_scratch, std::vector<Operation> operations)
    : Update(std::vector<uint32_t>(num_operands)), num_scratch_(num_scratch), operations_(std::move(operations)) {
  const auto num_values = static_cast<int32_t>(num_operands + num_scratch);
  if (num_operands < 2 || num_values > static_cast<int32_t>(most_values)) {
    throw std::invalid_argument("an Update has from 2 operands on, and at most 12 values");
  }
  for (const auto& operation : operations_) {
    for (const auto position : {operation.out, operation.a, operation.b, operation.c}) {
      if (position >= num_values || position < -1) {
        throw std::invalid_argument("an Operation names value " + std::to_string(position) + ", which there is not");
      }
    }
    if (operation.out < 0 || operation.a < 0) {
      throw std::invalid_argument("an Operation has a result and at least one operand");
    }
    if (operation.out < static_cast<int32_t>(num_operands)) {
      ++num_writes_[operation.out];
    }
  }
  passes_ = passes_of(operations_, static_cast<int32_t>(num_operands));
}

bool BlockUpdate::is_here(const at::Tensor& tensor) const {
  return is_on(tensor, &KnownDevice::is_on_host);
}

const char* BlockUpdate::why_not(const std::vector<Row>& rows) {
  for (const Row& row : rows) {
    if (const char* reason = why_not_alike(row); *reason) {
      return reason;
    }
    if (row[0]->scalar_type() != at::kFloat && row[0]->scalar_type() != at::kDouble) {
      return "parameter that is neither float32 nor float64";
    }
    const auto num_bytes = static_cast<ptrdiff_t>(row[0]->nbytes()); // and so of the others
    std::array<const char*, most_values> starts{};
    for (size_t i = 0; i < num_operands(); ++i) {
      starts[i] = static_cast<const char*>(row[i]->const_data_ptr());
      for (size_t j = 0; j < i; ++j) {
        if ((num_writes_[i] || num_writes_[j]) && std::abs(starts[i] - starts[j]) < num_bytes) {
          return "parameter, gradient and state that share memory";
        }
      }
    }
  }
  return "";
}

bool BlockUpdate::takes_long(int64_t num_elements) const {
  return num_elements > most_elements;
}

void BlockUpdate::run(
    const std::vector<Row>& rows, const std::vector<std::vector<double>>& numbers, const std::vector<size_t>& number_of) {
  const SerialMkl serial;
  for (size_t i = 0; i < rows.size(); ++i) {
    run(rows[i], numbers.at(number_of.at(i)));
  }
}

void BlockUpdate::run(const Row& operands, const std::vector<double>& numbers) const {
  const at::Tensor& parameter = *operands[0];
  at::Tensor laid_out; // the gradient, as the parameter lies
  Pointers pointers{};
  for (size_t i = 0; i < num_operands(); ++i) {
    if (i == 1 && !are_equal(operands[1]->strides(), parameter.strides())) {
      laid_out = at::empty_like(parameter).copy_(*operands[1]);
      pointers[1] = laid_out.data_ptr();
    } else {
      pointers[i] = operands[i]->data_ptr();
    }
  }
  const bool is_float = parameter.scalar_type() == at::kFloat;
  const auto range = is_float ? (is_fused_machine() ? &update_range<float, true> : &update_range<float, false>)
                              : (is_fused_machine() ? &update_range<double, true> : &update_range<double, false>);
  at::parallel_for(0, parameter.numel(), grain_size, [&](int64_t begin, int64_t end) {
    range(passes_, num_operands(), num_scratch_, pointers, numbers, begin, end);
  });
  count_writes(operands);
}

} // namespace gradc
