// An optimizer's formula, run over a parameter and its state in one pass over memory.
//
// Layout.     Update      the operations, in order, and how many tensors (operands) and scratch values they work on
//             Operation   out = op(a, b, c, number), each of them the position of an operand or of a scratch value
//
// Blocks.     A parameter is worked on block by block, all operations on one block before the next, so that a block stays in
//             the first-level cache. Each operation is one call of ATen's in the optimizer as torch wrote it, rounded as that
//             call rounds on this machine; every element is computed alone, so neither blocks nor threads change a bit.
// Versions.   An operation that writes an operand is an in-place call in eager: it counts the operand's version up.
// The GIL.    Not held while running.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace gradc {

enum class UpdateOp : uint8_t {
  neg, abs, reciprocal, sqrt, // a
  mul, add_number, div, // a, number
  mul_values, div_values, maximum, // a, b
  add, lerp, // a, b, number
  addcmul, addcdiv, // a, b, c, number
};

// Positions beyond the operands are scratch values. `number` is a position in the numbers of a run; -1 where there is none.
struct Operation {
  UpdateOp op;
  int32_t out = -1, a = -1, b = -1, c = -1, number = -1;
};

// One loop over a block: of an operation, or of some that stand one behind the other and are often met so. `more` are positions of the
// numbers of those before the last.
struct Pass {
  enum class Kind : uint8_t { one, average, descent };
  Kind kind;
  Operation operation;
  std::array<int32_t, 2> more;
};

// The tensors of one operand, one for each parameter.
using TensorColumn = std::vector<at::Tensor>;

class Update {
 public:
  static constexpr size_t most_values = 12;
  // The operands of one parameter: itself, its gradient, its state. Borrowed.
  using Row = std::array<const at::Tensor*, most_values>;

  // Throws std::invalid_argument for a position out of range, or an operand that is missing.
  Update(size_t num_operands, size_t num_scratch, std::vector<Operation> operations);

  // Why these tensors cannot be updated here, or "". TensorColumn 0 is the parameter, operand 1 its gradient.
  std::string why_not(const std::vector<TensorColumn>& operands) const;

  // The same for one parameter.
  const char* why_not(const Row& operands) const;

  // Sets `scalars` to `values`, then runs the operations for each parameter i, with numbers[number_of[i]]. `operands` must have
  // passed `why_not`, and `scalars` `why_not_scalars`.
  void run(
      const std::vector<TensorColumn>& operands, const std::vector<std::vector<double>>& numbers,
      const std::vector<size_t>& number_of, const std::vector<at::Tensor>& scalars, const std::vector<double>& values) const;

  // Runs the operations for one parameter.
  void run(const Row& operands, const std::vector<double>& numbers) const;

  size_t num_operands() const {
    return num_operands_;
  }

 private:
  Row row(const std::vector<TensorColumn>& operands, size_t number) const;

  size_t num_operands_, num_scratch_;
  std::vector<Operation> operations_;
  std::vector<Pass> passes_;
  std::vector<uint32_t> num_writes_; // of each operand
};

// What `step += 1` makes of an optimizer's step counts. They stay as they are: nothing of a step is done before all of it can be.
std::vector<double> next_counts(const std::vector<at::Tensor>& steps);

// Why these are no step counts, or other numbers that an optimizer keeps in tensors, that can be set here, or "".
std::string why_not_scalars(const std::vector<at::Tensor>& scalars);

// The same for one of them, but for the memory that it may share with others.
bool is_scalar(const at::Tensor& scalar);

double next_count(const at::Tensor& step);
void set_scalar(const at::Tensor& scalar, double value);

} // namespace gradc
