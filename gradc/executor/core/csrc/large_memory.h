// Memory of large tensors that plans make: kept mapped from one run to the next, in large pages.
//
// glibc gives a block of 32 MiB back to the kernel at each free, and smaller ones as soon as 64 MiB lie free at its heap's end.
// The next step has their pages made anew, 2 us for each 4 kB: 34,000 a step in a GPT of width 384. All that is mapped here,
// in use or not, is at most 1.25 of what was in use at once; what nobody has wanted for a minute goes back, and all where memory runs out.
#pragma once

#include <cstddef>

namespace gradc {

// While it lives, large memory for tensors of the CPU that this thread makes, in ATen's kernels, too, is such memory.
class LargeMemory {
 public:
  LargeMemory();
  ~LargeMemory();
  LargeMemory(const LargeMemory&) = delete;
  LargeMemory& operator=(const LargeMemory&) = delete;

 private:
  bool was_in_use_;
};

// Puts an allocator before torch's own, which is asked for all else. Called once, when the extension is loaded.
void install_large_memory();

// Gives back all that nobody uses. Returns how many bytes that was.
size_t release_large_memory();

} // namespace gradc
