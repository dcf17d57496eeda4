// Where the values of a stretch lie that are no tensors (fused_block.h): in the arena, or in the scratch of a chain.
#pragma once

#include "executor/cpu/csrc/fused_block.h"

#include <vector>

namespace gradc {

// A value's memory, with all its views. `made` is the step that makes it, -1 for a tensor made before the stretch. `shown` is the slot of
// the one view that is a tensor, where the value itself is none; else -1. `first` and `last` are the first and last call of the stretch
// that use the memory.
struct Root {
  Index slot = 0;
  Index made = -1;
  int64_t bytes = 0;
  Index shown = -1;
  bool is_tensor = false;
  size_t first = 0, last = 0;
  Address address{};
};

// Gives each root its address. Those of tensors get buffers of their own. Calls of one chain run at the same time.
void place(std::vector<Root>& roots, Stretch& stretch);

} // namespace gradc
