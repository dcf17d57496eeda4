// A method of optimizers that takes nothing, `optimizer.step()` or `optimizer.zero_grad()`, as a builtin function of the optimizer.
//
// Python's way there is a frame, and more of Dynamo's, which asks at each whether it knows its code: 1.5 us for each call.
#pragma once

#include <pybind11/pybind11.h>

#include <functional>
#include <string>

namespace gradc {

// Does all that the method does, without Python, and says whether it did; if not, all is still to do.
using Quickly = std::function<bool(PyObject* optimizer)>;

// Quickly, where `optimizer.name()` calls `function` of the optimizer's class, or else `otherwise(optimizer)`.
pybind11::object quick_method(const std::string& name, pybind11::object function, pybind11::object otherwise, Quickly quickly);

} // namespace gradc
