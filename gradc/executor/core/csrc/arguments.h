// How a C++ parameter of an ATen op is read off an operand.
//
// Argument<T> is made from (frame, operand) and gives a T by get(). It keeps alive what T refers to for the time of a call.
#pragma once

#include "executor/core/csrc/plan.h"

#include <ATen/core/IListRef.h>
#include <ATen/core/Tensor.h>
#include <c10/util/OptionalArrayRef.h>

#include <array>
#include <utility>

namespace gradc {

inline const at::Tensor& tensor_at(const Frame& frame, const Operand& operand) {
  return frame[operand].toTensor();
}

inline const std::vector<int64_t>& ints_at(const Frame& frame, const Operand& operand) {
  const auto& values = operand.kind == Operand::Kind::constant ? frame.plan.constants : *frame.bound;
  return values[operand.index].ints;
}

inline bool is_none(const Frame& frame, const Operand& operand) {
  return frame[operand].isNone();
}

template <class T>
struct Argument {
  using Held = std::remove_cvref_t<T>;
  Argument(const Frame& frame, const Operand& operand) : value(frame[operand].to<Held>()) {}
  const Held& get() const {
    return value;
  }
  Held value;
};

template <>
struct Argument<const at::Tensor&> {
  Argument(const Frame& frame, const Operand& operand) : value(tensor_at(frame, operand)) {}
  const at::Tensor& get() const {
    return value;
  }
  const at::Tensor& value;
};

// A mutated argument is a slot of this run, which is why the frame's constness may be taken off.
template <>
struct Argument<at::Tensor&> {
  Argument(const Frame& frame, const Operand& operand) : value(const_cast<at::Tensor&>(tensor_at(frame, operand))) {}
  at::Tensor& get() const {
    return value;
  }
  at::Tensor& value;
};

template <>
struct Argument<const std::optional<at::Tensor>&> {
  Argument(const Frame& frame, const Operand& operand) {
    if (const c10::IValue& given = frame[operand]; given.isTensor()) {
      value = given.toTensor();
    }
  }
  const std::optional<at::Tensor>& get() const {
    return value;
  }
  std::optional<at::Tensor> value;
};

template <>
struct Argument<const at::ITensorListRef&> {
  Argument(const Frame& frame, const Operand& operand) {
    for (const Operand& item : frame.plan.packs[operand.index].items) {
      tensors.push_back(tensor_at(frame, item));
    }
    value = at::ITensorListRef(tensors);
  }
  const at::ITensorListRef& get() const {
    return value;
  }
  std::vector<at::Tensor> tensors;
  at::ITensorListRef value;
};

template <>
struct Argument<const at::Scalar&> {
  Argument(const Frame& frame, const Operand& operand) : value(frame[operand].toScalar()) {}
  const at::Scalar& get() const {
    return value;
  }
  at::Scalar value;
};

template <>
struct Argument<c10::SymInt> {
  Argument(const Frame& frame, const Operand& operand) : value(frame[operand].toInt()) {}
  c10::SymInt get() const {
    return value;
  }
  int64_t value;
};

template <>
struct Argument<at::IntArrayRef> {
  Argument(const Frame& frame, const Operand& operand) : value(ints_at(frame, operand)) {}
  at::IntArrayRef get() const {
    return value;
  }
  const std::vector<int64_t>& value;
};

template <>
struct Argument<c10::SymIntArrayRef> : Argument<at::IntArrayRef> {
  using Argument<at::IntArrayRef>::Argument;
  c10::SymIntArrayRef get() const {
    return c10::fromIntArrayRefSlow(value);
  }
};

template <>
struct Argument<at::OptionalIntArrayRef> {
  Argument(const Frame& frame, const Operand& operand) {
    if (!is_none(frame, operand)) {
      value = ints_at(frame, operand);
    }
  }
  at::OptionalIntArrayRef get() const {
    return value;
  }
  at::OptionalIntArrayRef value;
};

template <>
struct Argument<at::OptionalSymIntArrayRef> {
  Argument(const Frame& frame, const Operand& operand) {
    if (!is_none(frame, operand)) {
      value = c10::fromIntArrayRefSlow(ints_at(frame, operand));
    }
  }
  at::OptionalSymIntArrayRef get() const {
    return value;
  }
  at::OptionalSymIntArrayRef value;
};

template <size_t N>
struct Argument<std::array<bool, N>> {
  Argument(const Frame& frame, const Operand& operand) {
    const auto& given = frame[operand].toListRef();
    for (size_t i = 0; i < N; ++i) {
      value[i] = given[i].toBool();
    }
  }
  std::array<bool, N> get() const {
    return value;
  }
  std::array<bool, N> value;
};

// Gelu's approximation: a view of the string that the constant holds.
template <>
struct Argument<std::string_view> {
  Argument(const Frame& frame, const Operand& operand) : value(frame[operand].toStringView()) {}
  std::string_view get() const {
    return value;
  }
  std::string_view value;
};

// The positions of an op's parameters.
template <class Result, class... Parameters>
constexpr auto indices(Result (*)(Parameters...)) {
  return std::index_sequence_for<Parameters...>{};
}

} // namespace gradc
