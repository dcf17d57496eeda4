// Tensors, numbers and errors between Python and C++.
#pragma once

#include <ATen/core/ivalue.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/csrc/utils/pybind.h>

#include <utility>
#include <vector>

namespace gradc {

// Runs Python code. Its error leaves as torch's python_error, which the engine carries to the caller of backward.
template <typename Function>
auto guarded(Function function) {
  try {
    return function();
  } catch (pybind11::error_already_set& error) {
    error.restore();
    python_error carried;
    carried.persist();
    throw std::move(carried);
  }
}

inline pybind11::object to_python(const at::Tensor& tensor) {
  return pybind11::reinterpret_steal<pybind11::object>(THPVariable_Wrap(tensor)); // None for an undefined tensor
}

inline pybind11::list to_python(const torch::autograd::variable_list& tensors) {
  pybind11::list list(tensors.size());
  for (size_t i = 0; i < tensors.size(); ++i) {
    list[i] = to_python(tensors[i]);
  }
  return list;
}

inline torch::autograd::variable_list to_tensors(const pybind11::handle& values) {
  torch::autograd::variable_list tensors;
  for (const pybind11::handle value : values) {
    tensors.push_back(value.is_none() ? at::Tensor() : value.cast<at::Tensor>());
  }
  return tensors;
}

inline c10::IValue to_ivalue(const pybind11::handle& value) {
  if (THPVariable_Check(value.ptr())) {
    return THPVariable_Unpack(value.ptr());
  }
  return value.is_none() ? c10::IValue() : c10::IValue(value.cast<int64_t>());
}

inline std::vector<c10::IValue> to_ivalues(const pybind11::sequence& values) {
  std::vector<c10::IValue> converted;
  converted.reserve(pybind11::len(values));
  for (const pybind11::handle value : values) {
    converted.push_back(to_ivalue(value));
  }
  return converted;
}

} // namespace gradc
