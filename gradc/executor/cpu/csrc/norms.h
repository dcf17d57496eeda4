// Batch norm in training, of images that lie one channel after the other.
//
// ATen adds up a channel's values one by one in double precision, so that each addition waits for the last. Here several
// channels are added up side by side, each in that same order. Whether the rest is rounded as by this machine's ATen is
// tried out once (tests/executor/test_direct.py compares the bits, too).
#pragma once

#include "executor/core/csrc/devices.h"

#include <vector>

namespace gradc {

// Of a step that normalizes a batch.
std::vector<KernelRow> norm_kernels();

} // namespace gradc
