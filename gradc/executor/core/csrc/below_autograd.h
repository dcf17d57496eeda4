// What a kernel in eager sees, when it is called by the code of a plan: autograd and autocast are done, and no mode looks on.
#pragma once

#include <ATen/autocast_mode.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

namespace gradc {

// Below autograd and view tracking. Grad mode is on, as it is when a forward that will have a backward runs: mkldnn_rnn_layer makes
// the workspace that its backward needs only then.
struct BelowAutograd {
  at::AutoDispatchBelowADInplaceOrView dispatch;
  at::AutoGradMode grad_mode{true};
};

using NoAutocast = c10::impl::ExcludeDispatchKeyGuard;

inline NoAutocast no_autocast() {
  return NoAutocast(c10::autocast_dispatch_keyset);
}

// True if no dispatch mode and no function transform of this thread's wants to see the calls.
inline bool is_undispatched() {
  return (c10::impl::tls_local_dispatch_key_set().included_ - c10::default_included_set).empty();
}

} // namespace gradc
