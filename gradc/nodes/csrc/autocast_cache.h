// The cache of torch's autocast, which keeps a weight's copy in a lower dtype for as long as an autocast context is open.
#pragma once

#include <ATen/core/Tensor.h>

namespace gradc {

// The copy of a weight that eager code under autocast to `dtype` would use, from autocast's cache: in another dtype, if it was
// first cast to that in the context that is open.
at::Tensor cached_cast(const at::Tensor& leaf, c10::ScalarType dtype);

// True if an autocast context is open in this thread, so that the cache lives on behind what is run now.
bool is_autocast_nested();

} // namespace gradc
