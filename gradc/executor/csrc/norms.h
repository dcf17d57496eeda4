// Batch norm in training, of images that lie one channel after the other.
//
// ATen adds up a channel's values one by one in double precision, so that each addition waits for the last. Here several
// channels are added up side by side, each in that same order. Whether the rest is rounded as by this machine's ATen is
// tried out once (tests/executor/test_direct.py compares the bits, too).
#pragma once

#include "executor/csrc/plan.h"

#include <string>

namespace gradc {

// The call of a step that normalizes a batch; null if it does something else.
Kernel find_norm_kernel(const Plan& plan, const Step& step, const std::string& op);

} // namespace gradc
