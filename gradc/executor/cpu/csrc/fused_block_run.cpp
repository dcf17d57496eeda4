// Running a stretch: addresses for its values, then one call after the other.
#include "csrc/plain.h"
#include "executor/core/csrc/kernels.h"
#include "executor/core/csrc/versions.h"
#include "executor/cpu/csrc/direct.h"
#include "executor/cpu/csrc/memory.h"
#include "executor/cpu/csrc/pointwise.h"
#include "executor/cpu/csrc/fused_block.h"

#include <ATen/Parallel.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/alignment.h>
#include <c10/util/SmallVector.h>

#include <algorithm>
#include <array>
#include <cstdlib>

namespace gradc {
namespace {

using Bytes = std::unique_ptr<std::byte, decltype(&std::free)>;
using Buffers = c10::SmallVector<std::byte*, 64>;
using Chain = c10::ArrayRef<StretchCall>;

Bytes aligned_bytes(size_t size) {
  const size_t whole = (size + c10::gAlignment - 1) / c10::gAlignment * c10::gAlignment;
  Bytes bytes(static_cast<std::byte*>(std::aligned_alloc(c10::gAlignment, whole)), &std::free);
  TORCH_CHECK_WITH(OutOfMemoryError, bytes, "gradc: out of memory: ", size, " bytes");
  return bytes;
}

// Memory for one run of a stretch; each thread keeps the largest for the next.
class Arena {
 public:
  explicit Arena(size_t size) : size_(size) {
    std::swap(block_, kept());
    if (block_.size < size) {
      block_ = {size, aligned_bytes(size)};
    }
    c10::profiledCPUMemoryReporter().New(block_.memory.get(), size_);
  }
  ~Arena() {
    c10::profiledCPUMemoryReporter().Delete(block_.memory.get());
    if (kept().size < block_.size) {
      std::swap(block_, kept());
    }
  }
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;
  std::byte* data() const {
    return block_.memory.get();
  }

 private:
  struct Block {
    size_t size = 0;
    Bytes memory{nullptr, &std::free};
  };
  static Block& kept() {
    thread_local Block kept;
    return kept;
  }

  size_t size_;
  Block block_;
};

std::byte* at(const Address& address, const Buffers& buffers) {
  return buffers[address.buffer] + address.offset;
}

// ---- tensors

void make_tensor(const StretchCall& call, Frame& frame, Buffers& buffers) {
  if (call.makes >= 0) {
    const Step& step = frame.plan.steps[call.step];
    at::Tensor made = result_memory(step, frame, call.made_bytes);
    buffers[call.out.buffer] = static_cast<std::byte*>(made.mutable_data_ptr());
    if (call.makes != step.outs[0]) {
      const Meta& meta = *frame.plan.metas[call.makes];
      made.unsafeGetTensorImpl()->set_sizes_and_strides(meta.sizes, meta.strides, call.view_offset);
    }
    frame.slots[call.makes] = std::move(made);
  }
}

void finish(const StretchCall& call, Frame& frame) {
  for (const Index slot : call.bumps) {
    bump_version(frame.slots[slot]);
  }
  for (const Index slot : call.releases) {
    retire(frame.slots[slot]);
  }
}

// ---- calls

void call_with_tensors(const StretchCall& call, Frame& frame, Buffers& buffers) {
  call_step(frame.plan.steps[call.step], frame, /*unobserved=*/true);
  TORCH_INTERNAL_ASSERT(frame.is_exact, "gradc: ", frame.plan.name, ": a result is laid out otherwise than in the run before");
  for (const auto& [slot, number] : call.results) {
    buffers[number] = static_cast<std::byte*>(frame.slots[slot].toTensor().mutable_data_ptr());
  }
}

void call_direct(const StretchCall& call, Frame& frame, const Buffers& buffers) {
  const Step& step = frame.plan.steps[call.step];
  std::array<const void*, most_direct_inputs> inputs{};
  for (size_t i = 0; i < call.inputs.size(); ++i) {
    inputs[i] = at(call.inputs[i], buffers);
  }
  const Exact& exact = call.merged ? *call.merged : step.exact;
  exact.direct(exact.payload, at(call.out, buffers), inputs.data());
}

// ---- chains

std::byte* chain_scratch() {
  thread_local const Bytes scratch = aligned_bytes(Stretch::most_scratch * Stretch::scratch_bytes);
  return scratch.get();
}

// Elements that a loop meets: those from `begin` on lie `begin * step` bytes behind `start`. In the scratch, which holds one
// part at a time, and of a number, there is no step.
struct Elements {
  std::byte* start = nullptr;
  int64_t step = 0;
  std::byte* at(int64_t begin) const {
    return start + begin * step;
  }
};

Elements elements_of(const Address& address, const Buffers& buffers, size_t element_size) {
  if (address.buffer == Address::scratch) {
    return {chain_scratch() + address.offset, 0};
  }
  return {at(address, buffers), static_cast<int64_t>(element_size)};
}

// One call of a chain, in the thread that runs it.
struct ChainLoop {
  Loop loop = nullptr;
  Elements out;
  std::array<Elements, most_loop_inputs> inputs;

  void run(int64_t begin, int64_t end) const {
    std::array<const void*, most_loop_inputs> from{};
    for (size_t i = 0; i < most_loop_inputs; ++i) {
      from[i] = inputs[i].at(begin);
    }
    loop(out.at(begin), from.data(), end - begin);
  }
};

ChainLoop chain_loop(const StretchCall& call, const Pointwise& pointwise, const Buffers& buffers) {
  ChainLoop made{pointwise.loop, elements_of(call.out, buffers, pointwise.element_size), {}};
  size_t next = 0;
  for (size_t i = 0; i < pointwise.inputs.size(); ++i) {
    const auto& input = pointwise.inputs[i];
    if (input.element_size) {
      made.inputs[i] = elements_of(call.inputs[next++], buffers, input.element_size);
    } else {
      made.inputs[i].start = const_cast<std::byte*>(input.number.data());
    }
  }
  return made;
}

void run_parts(Chain chain, const Frame& frame, const Buffers& buffers, int64_t begin, int64_t end) {
  c10::SmallVector<ChainLoop, 16> loops;
  for (const StretchCall& call : chain) {
    loops.push_back(chain_loop(call, payload_as<Pointwise>(frame.plan.steps[call.step].exact.payload), buffers));
  }
  for (; begin < end; begin += Stretch::part_size) {
    for (const ChainLoop& loop : loops) {
      loop.run(begin, std::min(end, begin + Stretch::part_size));
    }
  }
}

void run_chain(Chain chain, Frame& frame, Buffers& buffers) {
  for (const StretchCall& call : chain) {
    make_tensor(call, frame, buffers);
  }
  const int64_t size = payload_as<Pointwise>(frame.plan.steps[chain[0].step].exact.payload).size;
  if (size <= most_on_one_thread) {
    run_parts(chain, frame, buffers, 0, size);
  } else {
    at::parallel_for(0, size, most_on_one_thread, [&](int64_t begin, int64_t end) {
      run_parts(chain, frame, buffers, begin, end);
    });
  }
  for (const StretchCall& call : chain) {
    finish(call, frame);
  }
}

} // namespace

bool can_run(const Stretch& stretch, const Frame& frame) {
  const auto& [written, outside] = std::tie(stretch.written, stretch.outside);
  const auto storage = [&](Index slot) { return frame.slots[slot].toTensor().storage().unsafeGetStorageImpl(); };
  const auto is_apart = [&](Index one, Index other) { return one == other || storage(one) != storage(other); };
  const auto is_fit = [&](const Buffer& read) {
    return is_plain_on_cpu(frame.slots[read.slot]) &&
        std::all_of(written.begin(), written.end(), [&](Index slot) { return is_apart(slot, read.slot); });
  };
  const bool has_precision = frame.has_full_precision || !stretch.needs_full_precision;
  return has_precision && std::all_of(outside.begin(), outside.end(), is_fit);
}

Index run_stretch(const Stretch& stretch, Frame& frame) {
  const Arena arena(stretch.arena_bytes);
  Buffers buffers(stretch.num_buffers);
  buffers[Address::arena] = arena.data();
  for (const Index slot : stretch.written) {
    frame.slots[slot].toTensor().mutable_data_ptr(); // memory shared until it is written is the tensor's own from here on
  }
  for (const auto& [slot, number] : stretch.outside) {
    buffers[number] = static_cast<std::byte*>(const_cast<void*>(frame.slots[slot].toTensor().const_data_ptr()));
  }
  for (size_t i = 0; i < stretch.calls.size(); i += stretch.calls[i].chain) {
    const StretchCall& call = stretch.calls[i];
    if (call.chain > 1) {
      run_chain({&call, static_cast<size_t>(call.chain)}, frame, buffers);
      continue;
    }
    if (call.is_direct) {
      make_tensor(call, frame, buffers);
      call_direct(call, frame, buffers);
    } else {
      call_with_tensors(call, frame, buffers);
    }
    finish(call, frame);
  }
  return stretch.end;
}

} // namespace gradc
