// What torch knows of a tensor that is a view: how it was made, and at which version of its base.
#pragma once

#include <ATen/ATen.h>

namespace gradc {

// From here on, when the view's base has been written into, its node is made again as that of a strided tensor's: as_strided.
void forget_view_function(const at::Tensor& view);

// Whether the view's node is made again when it is next asked for: its base has been written into.
bool is_view_outdated(const at::Tensor& view);

// Makes it so, without a write.
void outdate_view(const at::Tensor& view);

// The tensor's node is no longer its own; also a view's, which detach_() refuses.
void forget_history(const at::Tensor& tensor);

// `tensor`, which lies in the memory of `base`, as a view of it: written into, it changes the history of `base`. Its own history
// is that of `tensor`. The three count their versions as one.
at::Tensor as_view_of(const at::Tensor& base, const at::Tensor& tensor);

} // namespace gradc
