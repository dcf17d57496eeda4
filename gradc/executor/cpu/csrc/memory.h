// Memory for small results: blocks that a thread frees are kept for the next call that wants one of that size.
//
// The tensors of a small model are some kilobytes, made and freed by the hundred in each step; aligned allocation then
// costs as much as the kernel. Large results go to torch's own allocator. torch's memory profiler sees both.
#pragma once

#include "executor/core/csrc/plan.h"

#include <cstddef>
#include <cstring>

namespace gradc {

inline constexpr size_t small_bytes = 256 * 1024;
inline constexpr size_t most_moved_bytes = size_t{1} << 17; // by one call of ours: beyond, ATen may copy and fill in several threads

// One number at a time needs no call. Many go by registers, in pieces: the instruction by which memcpy moves more is slow in new memory.
inline void copy_bytes(std::byte* out, const std::byte* in, size_t size) {
  constexpr size_t piece = 4096;
  if (size == 4) {
    std::memcpy(out, in, 4);
  } else if (size == 8) {
    std::memcpy(out, in, 8);
  } else {
    for (; size > piece; out += piece, in += piece, size -= piece) {
      std::memcpy(out, in, piece);
    }
    std::memcpy(out, in, size);
  }
}

size_t num_bytes(const Meta& meta);

bool is_contiguous(const Meta& meta);

// True for a layout that fills its memory: contiguous, up to an order of the dimensions.
bool is_dense(const Meta& meta);

// True for the strides that torch gives to a new contiguous tensor, dimensions of size 1 too.
bool has_plain_strides(const Meta& meta);

// True if real tensors have these strides where fake ones have: not always so for a dimension of size 1.
bool has_sure_strides(const Meta& meta);

// Where the numbers of a slot's tensor begin.
inline const void* memory_at(const Frame& frame, Index slot) {
  return frame.slots[slot].toTensor().const_data_ptr();
}

// A tensor with nothing written to it. The layout must be dense.
at::Tensor new_memory(const Meta& meta);
at::Tensor new_memory(const Meta& meta, size_t size); // of so many bytes, as num_bytes counts them

// Lets a tensor go. If it is one of `new_memory`'s that nobody else holds, it may be what the next `new_memory` of its
// dtype and size gives.
void retire(at::Tensor tensor);

// The same of what a slot holds, which is empty then.
void retire(c10::IValue& slot);

// Where a step's one result goes, laid out as when captured and with nothing written to it: the memory of `step.reuse` if
// nobody else holds that, else memory of its own. The layout must be dense.
at::Tensor result_memory(const Step& step, Frame& frame);
at::Tensor result_memory(const Step& step, Frame& frame, size_t size);

} // namespace gradc
