// Iterated calls: ATen's own loops, over an iterator that was set up when the plan was made.
//
// On small tensors most of what an op of ATen's takes is setting up its iterator: from shapes, strides and dtypes, all of which
// a plan knows. So the op's own class sets it up once, on tensors without memory. A call puts in addresses, and has that class
// run its kernel: the one that eager would run, on the same ranges of memory, in the same threads.
#pragma once

#include "executor/core/csrc/devices.h"

#include <string>
#include <vector>

namespace gradc {

class Iterated {
 public:
  virtual ~Iterated() = default;

  // `inputs` in the order of the op's tensors. In place, the first of them is `out`. From any thread.
  virtual void run(void* out, const void* const* inputs) const = 0;
};

// Of a step on tensors laid out as captured.
std::vector<KernelRow> iterated_kernels();

// Names, with overload, of the ops that have them, and so do the same ops in place.
std::vector<std::string> iterated_ops();

} // namespace gradc
