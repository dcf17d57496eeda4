// A joint call: a region's forward, and backward right behind it, with no node in between.
//
// Where bytecode takes what a region returns straight to `backward()`, and nobody sees the loss's history afterwards, the forward
// hangs its values on no node: they wait here, in this thread. Backward runs on them and gives the gradients to the leaves. Where
// that is not possible, they are hung on the nodes that any other call has, and backward finds those.
#pragma once

#include "nodes/csrc/region_layout.h"

#include <ATen/core/ivalue.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

namespace gradc {

class JointCall {
 public:
  // Whether calls of the region may be joint, if the forward's value at that position is the loss: it is a number, and all else
  // that the region's one segment leads from is not returned.
  static bool may_be(const RegionLayout& region, size_t loss);

  JointCall(
      std::shared_ptr<const RegionLayout> region, std::vector<c10::IValue> primals, std::vector<c10::IValue> values, size_t loss);

  const at::Tensor& loss() const {
    return values_[loss_].toTensor();
  }
  // Backward, as the loss's `backward()` does it; without the GIL. False, and nothing has happened, where the call needs nodes.
  bool run();
  // Hangs the values on nodes.
  void hang() const;

  // This thread's call whose loss has not come to backward yet.
  static void wait(JointCall call);
  static std::optional<JointCall> take();

 private:
  const SegmentLayout& layout() const {
    return region_->segments.front();
  }
  const at::Tensor& leaf(const ExitLayout& exit) const {
    return primals_[exit.primal].toTensor();
  }
  bool leads_to_unwatched_leaves() const;
  bool adds_to_one_leaf_twice(const Plan& plan) const;
  std::vector<c10::IValue> inputs_of(const CompiledBackward& backward, at::Tensor tangent) const;
  at::Tensor saved(size_t position) const;

  std::shared_ptr<const RegionLayout> region_;
  std::vector<c10::IValue> primals_, values_;
  size_t loss_;
  std::vector<uint32_t> versions_; // of the primals that are saved, in the order in which they are; 0 for values
};

} // namespace gradc
