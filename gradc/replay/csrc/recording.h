// What a capture leaves of a backward pass: pieces, which are Programs, between boundaries, which are nodes that run as they are.
//
//             piece 0 -> boundary 0 -> piece 1 -> boundary 1 -> ... -> last piece
//
// Values are numbered by slot. What a boundary returns must look as it did when recorded, and must have left gradients, hooks and
// saved tensors of the rest alone; otherwise an EngineRun goes on from the boundary's snapshot.
#pragma once

#include "capture/csrc/observer.h"
#include "executor/core/csrc/plan.h"
#include "walk/csrc/walk.h"

#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <set>
#include <utility>
#include <vector>

namespace gradc {

// coefficient * the product of some symbols: what a recording says of a number.
struct Term {
  int64_t coefficient = 0;
  std::vector<uint32_t> symbols;
  int64_t at(const Numbers& values) const {
    int64_t value = coefficient;
    for (const auto symbol : symbols) {
      value *= values[symbol];
    }
    return value;
  }
};

struct Piece {
  std::shared_ptr<Plan> plan;
  std::function<std::vector<c10::IValue>(std::vector<c10::IValue>)> runner; // where there is no plan
  std::vector<Index> inputs;
  std::vector<uint32_t> symbols; // whose values follow the inputs
  std::vector<Index> dying; // slots that nothing reads later
  std::vector<Index> outputs;
  std::vector<uint32_t> nodes;
  std::vector<std::pair<uint32_t, Index>> grads; // leaf's node -> slot of its new .grad
  std::vector<std::pair<uint32_t, uint32_t>> recounted; // position of an output -> its version counter in eager
  std::vector<uint32_t> leaves; // every leaf's node of the piece, for the check that its .grad is as walked
};

struct Boundary {
  uint32_t node = 0;
  bool is_needed = true; // false: its hooks alone are called, and what they return is asked for
  std::vector<Index> inputs; // -1: undefined
  std::vector<bool> is_stealable; // of each input, whether in eager it is the only tensor on its memory and held once
  std::vector<Index> dying;
  std::vector<Index> outputs;
  std::vector<Bytes> metadata;
  std::vector<std::vector<Term>> numbers;
  std::vector<std::pair<size_t, bool>> holders; // of some outputs, by position: whether nobody else may hold them, or somebody must
  std::vector<std::pair<size_t, bool>> kept; // of some inputs, by position: whether a hook must keep them, or none may
  Snapshot<Index> snapshot;
};

struct Recording {
  Bytes key;
  Numbers numbers;
  std::vector<Term> terms; // what the numbers must be, where the recording has symbols; otherwise empty
  std::vector<size_t> symbols; // where in the numbers each symbol's value stands
  std::set<Numbers> proven; // the values of symbols for which the recording is known to hold
  std::vector<uint32_t> order;
  std::vector<bool> ties;
  std::vector<int64_t> offsets; // of the inputs, where a call depends on them; otherwise empty
  size_t num_slots = 0;
  std::vector<Index> inputs; // slot of each walked tensor
  std::vector<Piece> pieces; // one more than boundaries
  std::vector<Boundary> boundaries;
  std::vector<Index> results;
  bool is_uncapturable = false; // nothing could be recorded: run by torch's engine
};

// Whether the numbers are what the terms say for these values of the symbols.
bool are_equal(const Numbers& numbers, const std::vector<Term>& terms, const Numbers& symbols);

// Whether `recording` replays `walk`. `is_proven` false: it would, if the values of its symbols were proven.
bool fits(const Walk& walk, const Recording& recording, bool is_proven = true);
Numbers symbol_values(const Walk& walk, const Recording& recording);

// The recordings made so far, the last used first. At most `limit` are kept.
class Recordings {
 public:
  explicit Recordings(size_t limit) : limit_(limit) {}

  // The one that replays `walk`; nullptr if there is none.
  std::shared_ptr<Recording> find(const Walk& walk, bool is_proven);
  void keep(std::shared_ptr<Recording> recording);
  // Says that `recording` holds for these values of its symbols.
  void prove(const std::shared_ptr<Recording>& recording, Numbers values);
  void clear();
  size_t size() const;

 private:
  size_t limit_;
  mutable std::mutex mutex_;
  std::list<std::shared_ptr<Recording>> known_;
};

} // namespace gradc
