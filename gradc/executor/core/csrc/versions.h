// What the ADInplaceOrView kernels, which plans skip, do for autograd's check of saved tensors.
#pragma once

#include "executor/core/csrc/plan.h"

namespace gradc {

inline void bump_version(const c10::IValue& value) {
  if (auto* tensor = value.unsafeToTensorImpl(); !tensor->is_inference()) {
    tensor->bump_version();
  }
}

inline void track_versions(const Step& step, Frame& frame) {
  for (const Index slot : step.writes) {
    bump_version(frame.slots[slot]);
  }
  for (const auto& [view, base] : step.shares) {
    if (auto* tensor = frame.slots[view].unsafeToTensorImpl(); !tensor->is_inference()) {
      tensor->set_version_counter(frame.slots[base].unsafeToTensorImpl()->version_counter());
    }
  }
}

} // namespace gradc
