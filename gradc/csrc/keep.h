// Python objects that C++ owns.
#pragma once

#include <torch/csrc/utils/pybind.h>

#include <memory>
#include <utility>

namespace gradc {

// An object that may be let go of in any thread, without the GIL. Once the interpreter has ended it is left where it is: a
// thread's queue of nodes, which a backward that failed leaves filled, is cleared that late.
inline std::shared_ptr<pybind11::object> keep(pybind11::object object) {
  return {new pybind11::object(std::move(object)), [](pybind11::object* held) {
            if (Py_IsInitialized()) {
              const pybind11::gil_scoped_acquire gil;
              delete held;
            }
          }};
}

} // namespace gradc
