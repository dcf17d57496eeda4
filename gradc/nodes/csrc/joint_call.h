// A joint call: a region's forward, and backward right behind it, with no node in between.
//
// Where bytecode takes what a region returns straight to `backward()`, and nobody sees the loss's history afterwards, the forward
// hangs its values on no node: they wait here, in this thread. Backward runs on them and gives the gradients to the leaves. Where
// that is not possible, they are hung on the nodes that any other call has, and backward finds those.
//
// After two such calls, forward and backward are one plan, if they can be (gradc/region/joined.py): the forward's turn then makes the
// gradients, too, and they wait until `backward()`. If that cannot take them, the forward's values are made anew.
#pragma once

#include "nodes/csrc/region_layout.h"

#include <ATen/core/ivalue.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

namespace gradc {

class ForwardBackwardCall {
 public:
  // Whether calls of the region may be joint, if the forward's value at that position is the loss: it is a number, and all else
  // that the region's one segment leads from is not returned.
  static bool may_be(const RegionLayout& region, size_t loss);

  // Runs the forward. `start`: eager's first sequence number.
  ForwardBackwardCall(std::shared_ptr<const RegionLayout> region, std::vector<c10::IValue> primals, size_t loss, uint64_t start);

  const std::vector<c10::IValue>& primals() const {
    return primals_;
  }
  // Those that the region returns, at least.
  const std::vector<c10::IValue>& values() const {
    return values_;
  }
  const at::Tensor& loss() const {
    return values_[loss_].toTensor();
  }
  // Backward, as the loss's `backward()` does it; without the GIL. False, and nothing has happened, where the call needs nodes.
  bool run();
  // Whether the forward made the gradients, too.
  bool is_joined() const {
    return joined_ != nullptr;
  }
  // Behind backward: makes one plan for calls to come.
  void join() const;
  // Hangs the values on nodes.
  void hang();

  // This thread's call whose loss has not come to backward yet.
  static void wait(ForwardBackwardCall call);
  static std::optional<ForwardBackwardCall> take();

 private:
  const SegmentLayout& layout() const {
    return region_->segments.front();
  }
  const at::Tensor& leaf(const ExitLayout& exit) const {
    return primals_[exit.primal].toTensor();
  }
  std::vector<bool> all_needed() const {
    return std::vector<bool>(layout().exits.size(), true);
  }
  Key key_for(const at::Tensor& tangent) const;
  std::shared_ptr<const CompiledBackward> backward_for(const Key& key) const;
  bool run_joined();
  bool leads_to_unwatched_leaves() const;
  bool leaves_sums_to_the_engine(const Plan& plan) const;
  std::vector<c10::IValue> inputs_of(const CompiledBackward& backward, at::Tensor tangent) const;
  void check_versions(const CompiledBackward& backward) const;
  void check_version(size_t position) const;
  at::Tensor saved(size_t position) const;
  void make_values();

  std::shared_ptr<const RegionLayout> region_;
  std::vector<c10::IValue> primals_, values_;
  size_t loss_;
  uint64_t start_;
  c10::Stream stream_; // of the loss's device, when the forward ran
  std::vector<uint32_t> versions_; // of the primals; 0 for numbers
  std::shared_ptr<const Joined> joined_; // null where the forward ran by itself
  bool has_failed_ = false; // to run forward and backward in one
  Key key_; // of the backward in it
  std::vector<c10::IValue> gradients_; // that it made
};

} // namespace gradc
