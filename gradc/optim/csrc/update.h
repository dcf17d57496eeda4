// An optimizer's formula, run over all parameters of a group.
//
//     Update::why_not(rows) -> why these tensors cannot be updated, or ""
//     Update::run(rows, numbers, number_of)
//
// A row is one parameter with its gradient and its state. BlockUpdate works on the host's memory (block_update.h), KernelUpdate on a
// device's (kernel_update.h).
//
// Versions.   An operation that writes an operand is an in-place call in eager: it counts the operand's version up.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace gradc {

class Update {
 public:
  static constexpr size_t most_values = 12;
  // The operands of one parameter: itself, its gradient, its state. Borrowed.
  using Row = std::array<const at::Tensor*, most_values>;

  // `num_writes`: how often each operand is written.
  explicit Update(std::vector<uint32_t> num_writes) : num_writes_(std::move(num_writes)) {}
  virtual ~Update() = default;
  Update(const Update&) = delete;
  Update& operator=(const Update&) = delete;
  Update(Update&&) = delete;
  Update& operator=(Update&&) = delete;

  // Why these cannot be updated here, or "".
  virtual const char* why_not(const std::vector<Row>& rows) = 0;

  // Updates each row i, with numbers[number_of[i]]. The rows must have passed `why_not`.
  virtual void run(const std::vector<Row>& rows, const std::vector<std::vector<double>>& numbers, const std::vector<size_t>& number_of) = 0;

  // True if other threads of Python are not to wait for so many elements.
  virtual bool takes_long(int64_t num_elements) const = 0;

  size_t num_operands() const {
    return num_writes_.size();
  }

 protected:
  // True if the tensor lies where this update works.
  virtual bool is_here(const at::Tensor& tensor) const = 0;

  // Why the operands of one parameter are not of one kind, all of them here, or "". Gradients may be laid out otherwise.
  const char* why_not_alike(const Row& row) const;
  void count_writes(const Row& row) const;

  std::vector<uint32_t> num_writes_; // of each operand

 private:
  bool is_writable(const at::Tensor& tensor) const;
};

// The tensors of one operand, one for each parameter.
using TensorColumn = std::vector<at::Tensor>;

std::vector<Update::Row> rows_of(const std::vector<TensorColumn>& operands);

// What `step += 1` makes of an optimizer's step counts. They stay as they are: nothing of a step is done before all of it can be.
std::vector<double> next_counts(const std::vector<at::Tensor>& steps);

// Why these are no step counts, or other numbers that an optimizer keeps in tensors, that can be set here, or "".
std::string why_not_scalars(const std::vector<at::Tensor>& scalars);

// The same for one of them, but for the memory that it may share with others.
bool is_scalar(const at::Tensor& scalar);

double next_count(const at::Tensor& step);
void set_scalar(const at::Tensor& scalar, double value);

} // namespace gradc
