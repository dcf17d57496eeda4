#include "optim/csrc/gradients.h"

#include "optim/csrc/group_step.h"

#include <torch/csrc/autograd/python_variable.h>

#include <utility>

namespace gradc {

bool clear_gradients(PyObject* params) {
  if (!PyList_CheckExact(params)) {
    return false;
  }
  for (Py_ssize_t place = 0; place < PyList_GET_SIZE(params); ++place) {
    PyObject* param = PyList_GET_ITEM(params, place);
    if (!is_leaf_of_torchs(param)) {
      return false;
    }
    const at::Tensor kept = THPVariable_Unpack(param);
    if (kept.grad().defined()) {
      const at::Tensor dies_here = std::exchange(kept.mutable_grad(), at::Tensor());
    }
  }
  return true;
}

} // namespace gradc
