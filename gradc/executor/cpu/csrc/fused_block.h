// A stretch of a plan: calls that follow each other and need no tensors of what only they read.
//
//     Places      an outside tensor    a tensor made here    the arena                     the scratch of a chain
//     of values   read where it lies   since it leaves       a fixed offset, for as long   one part at a time, in the
//                                                            as something reads it         nearest cache
//
// While a frame is exact all sizes and strides are known, so a value is an address. A value is a tensor if it leaves the
// stretch, or if a call wants tensors; those are made and freed where they would be without a stretch. Views of the others
// are nothing at all. Pointwise calls that follow each other form a chain: they go over memory together, a part at a time.
// Every call computes what it would by itself, on the same numbers.
//
// A stretch is a choice of speed: where the frame is not exact, or somebody watches, its steps run one by one (run.cpp).
#pragma once

#include "executor/core/csrc/plan.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace gradc {

// `offset` bytes into a buffer: the arena, the scratch of the present chain, or the memory of a tensor.
struct Address {
  static constexpr Index arena = 0, scratch = -1;
  Index buffer = arena;
  int64_t offset = 0;
  bool operator==(const Address&) const = default;
};

// A tensor that is read by its address, and the buffer that its memory is.
struct Buffer {
  Index slot = 0;
  Index number = 0;
};

// A call of the stretch, on addresses or with tensors. `makes` is the slot whose tensor takes a direct call's result, of `made_bytes`:
// that of the result, or of a view of it, the only one that is a tensor, which begins `view_offset` elements behind it. `bumps` are
// slots whose version it counts up, `releases` are slots that nothing reads behind it.
struct StretchCall {
  Index step = 0;
  bool is_direct = false;
  Address out;
  std::vector<Address> inputs;
  Index makes = -1;
  size_t made_bytes = 0;
  int64_t view_offset = 0;
  Index chain = 1; // how many calls, from this one on, go over memory together
  std::shared_ptr<const Exact> merged; // what does the work of several steps, of which `step` is the last; null: the step's own
  std::vector<Index> bumps;
  std::vector<Index> releases;
  std::vector<Buffer> results; // of a call with tensors
};

struct Stretch {
  static constexpr int64_t part_size = 1024; // elements of a chain at a time
  static constexpr int64_t scratch_bytes = part_size * sizeof(double);
  static constexpr int64_t most_scratch = 16; // values of a chain at a time

  Index end = 0; // the step behind it
  bool needs_full_precision = false;
  Index num_buffers = 1;
  int64_t arena_bytes = 0;
  std::vector<Buffer> outside; // tensors made before
  std::vector<Index> written;  // those of them that a direct call writes into
  std::vector<StretchCall> calls;
};

// Steps that `merged` does together, from `begin` up to `end`, as a stretch: one result, that of the last.
std::shared_ptr<const Stretch> as_one_call(const Plan& plan, Index begin, Index end, Exact merged);

// The stretches of a plan that has run once with nothing unforeseen: then every result is laid out as foreseen in every run
// that begins so. By the step that each begins with.
Stretches find_stretches(const Plan& plan);

// True if the stretch may run now; `frame` is exact and nobody watches.
bool can_run(const Stretch& stretch, const Frame& frame);

// Returns the step behind it.
Index run_stretch(const Stretch& stretch, Frame& frame);

} // namespace gradc
