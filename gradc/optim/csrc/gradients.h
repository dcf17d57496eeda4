// The gradients of an optimizer's parameters, let go of in one loop: what `optimizer.zero_grad()` does.
#pragma once

#include <pybind11/pybind11.h>

namespace gradc {

// Sets `.grad` to None for each parameter of the list `params`, in order; what dies then may run Python and change the list.
// False at the first that is not as usual: `params` no list, a tensor of a subclass, none at all, or no leaf.
bool clear_gradients(PyObject* params);

// All of `Optimizer.zero_grad(self)`, where nothing about the optimizer, its class or what surrounds the call is unusual.
class __attribute__((visibility("hidden"))) QuickZeroGrad { // as all that holds pybind11's
 public:
  // `grad` is what torch.Tensor.grad has to be; `set_eval_frame` turns Dynamo off, and on again, around what may run Python.
  QuickZeroGrad(pybind11::object grad, pybind11::function set_eval_frame);

  // False if all is still to do, from the beginning: some gradients may be None by then.
  bool run(PyObject* optimizer) const;

 private:
  bool are_gradients_as_usual() const;

  pybind11::object grad_;
  pybind11::function set_eval_frame_;
};

} // namespace gradc
