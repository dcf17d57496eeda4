#include "nodes/csrc/autocast_cache.h"

#include <ATen/autocast_mode.h>
#include <c10/util/ScopeExit.h>

namespace gradc {

at::Tensor cached_cast(const at::Tensor& leaf, c10::ScalarType dtype) {
  const auto device = leaf.device().type();
  const auto ambient = at::autocast::get_autocast_dtype(device);
  at::autocast::set_autocast_dtype(device, dtype);
  const auto restore = c10::make_scope_exit([&] { at::autocast::set_autocast_dtype(device, ambient); });
  return at::autocast::cached_cast(dtype, leaf, device);
}

bool is_autocast_nested() {
  at::autocast::increment_nesting();
  return at::autocast::decrement_nesting() > 0;
}

} // namespace gradc
