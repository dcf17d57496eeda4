// An optimizer's formula on a device: one kernel for all parameters of a group, started once for all that have the same numbers.
//
// Arguments.  What a launch works on goes with it by value, as the text of the kernel has it (gradc/optim/kernels.py):
//
//                 unsigned num_rows, unused;  Number numbers[num_numbers];  Row rows[most_rows], from the next multiple of 8 on
//                 Row: Real* operands[num_operands];  int64_t size;  unsigned first_block, unused
//
//             A Number is a double where the parameters are, else a float.
//             So nothing has to be copied to the device before, and nothing is read when the launch has returned.
// Memory.     All rows are updated at once: what one writes no other may read or write. That is looked at once for the same addresses.
#pragma once

#include "optim/csrc/device_kernel.h"
#include "optim/csrc/update.h"

#include <memory>

namespace gradc {

// A kernel for `most_rows` parameters of `dtype`, of which each block works on `elements_of_block` elements, with `num_threads` threads.
struct CompiledUpdate {
  std::shared_ptr<DeviceKernel> kernel;
  at::ScalarType dtype;
  size_t num_numbers, most_rows;
  uint32_t elements_of_block, num_threads;
};

class KernelUpdate final : public Update {
 public:
  KernelUpdate(std::vector<uint32_t> num_writes, CompiledUpdate compiled);

  const char* why_not(const std::vector<Row>& rows) override;
  void run(const std::vector<Row>& rows, const std::vector<std::vector<double>>& numbers, const std::vector<size_t>& number_of) override;
  bool takes_long(int64_t num_elements) const override;

 private:
  // Where an operand lies.
  struct Place {
    const char *begin, *end;
    bool is_written;
    bool operator==(const Place& other) const = default;
  };

  bool is_here(const at::Tensor& tensor) const override;
  bool are_apart(std::vector<Place> places);
  void launch(const std::vector<const Row*>& rows, const std::vector<double>& numbers) const;

  CompiledUpdate compiled_;
  std::vector<Place> known_apart_;
};

} // namespace gradc
