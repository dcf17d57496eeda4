// Which region's calls are joint (nodes/csrc/joint_call.h), and what bytecode calls then in place of the loss's `backward`.
#pragma once

#include <pybind11/pybind11.h>

#include <memory>

namespace gradc {

// Of one place in the bytecode where a loss goes straight to backward. Calls are joint from the moment at which that place has the
// function that takes their losses there.
class __attribute__((visibility("hidden"))) StraightLoss : public std::enable_shared_from_this<StraightLoss> {
 public:
  // `torchs` is torch.Tensor.backward; `may_run` tells whether nothing but its usual course may be taken just now.
  StraightLoss(pybind11::object torchs, pybind11::function may_run);

  bool is_on() const {
    return is_on_;
  }
  // How many joint backwards ran in this process.
  static size_t num_run() {
    return num_run_;
  }
  // Of these, how many ran as one plan with the forward.
  static size_t num_joined() {
    return num_joined_;
  }
  // Makes calls joint. The builtin function takes the loss's method `backward`.
  pybind11::object begin();

 private:
  PyObject* call(PyObject* method) const;
  bool run(PyObject* method) const;
  static inline size_t num_run_ = 0, num_joined_ = 0;

  pybind11::object torchs_, code_;
  pybind11::function may_run_;
  bool is_on_ = false;
};

void bind_straight_loss(pybind11::module_& module);

} // namespace gradc
