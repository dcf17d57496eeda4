// What hears of the calls of this thread, and so has to see those that gradc makes in torch's place.
#pragma once

#include "csrc/ambient.h"

#include <ATen/PythonTorchFunctionTLS.h>
#include <ATen/record_function.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>

namespace gradc {

// True while a profiler, a dispatch mode or a function mode is on, or kernels of ATen's are replaced.
inline bool is_anybody_listening() {
  return at::hasCallbacks() || c10::impl::TorchDispatchModeTLS::stack_len() > 0 || at::impl::PythonTorchFunctionTLS::stack_len() > 0 ||
      are_kernels_replaced();
}

} // namespace gradc
