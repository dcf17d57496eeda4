// An optimizer's formula on the host, run over a parameter and its state in one pass over memory.
//
// Layout.     BlockUpdate the operations, in order, and how many tensors (operands) and scratch values they work on
//             Operation   out = op(a, b, c, number), each of them the position of an operand or of a scratch value
//
// Blocks.     A parameter is worked on block by block, all operations on one block before the next, so that a block stays in
//             the first-level cache. Each operation is one call of ATen's in the optimizer as torch wrote it, rounded as that
//             call rounds on this machine; every element is computed alone, so neither blocks nor threads change a bit.
// The GIL.    Not held while large parameters are updated.
#pragma once

#include "optim/csrc/update.h"

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

class BlockUpdate final : public Update {
 public:
  // Throws std::invalid_argument for a position out of range, or an operand that is missing.
  BlockUpdate(size_t num_operands, size_t num_scratch, std::vector<Operation> operations);

  const char* why_not(const std::vector<Row>& rows) override;
  void run(const std::vector<Row>& rows, const std::vector<std::vector<double>>& numbers, const std::vector<size_t>& number_of) override;
  bool takes_long(int64_t num_elements) const override;

 private:
  bool is_here(const at::Tensor& tensor) const override;
  void run(const Row& operands, const std::vector<double>& numbers) const;

  size_t num_scratch_;
  std::vector<Operation> operations_;
  std::vector<Pass> passes_;
};

} // namespace gradc
