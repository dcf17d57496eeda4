// The gradients of an optimizer's parameters, let go of in one loop: what `optimizer.zero_grad()` does with each.
#pragma once

struct _object; // PyObject

namespace gradc {

// Sets `.grad` to None for each parameter of the list `params`, in order; what dies then may run Python and change the list.
// False at the first that is not as usual: `params` no list, a tensor of a subclass, none at all, or no leaf.
bool clear_gradients(_object* params);

} // namespace gradc
