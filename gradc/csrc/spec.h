// A spec: what Python lays out for C++ to make an object of, a frozen dataclass. Read here field by field.
//
//     Spec(name, object).get<T>(field) -> T          word(word, words, spec) -> enum          as<T>(value, where) -> T
//     Spec(name, object).refuse_others()             throws for a field that was not asked for
//
// What does not fit raises a SpecError, a ValueError in Python, that names the spec, the field and what was found there: a spec is
// written by gradc itself, so that it is a bug.
#pragma once

#include <torch/csrc/utils/pybind.h>

#include <functional>
#include <initializer_list>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace gradc {

struct __attribute__((visibility("hidden"))) SpecError : pybind11::value_error {
  using pybind11::value_error::value_error;
};

// `value` as a T; `where` names it.
template <typename T>
T as(const pybind11::handle& value, const std::string& where) {
  try {
    return value.cast<T>();
  } catch (const pybind11::cast_error&) {
    throw SpecError("gradc: " + where + " cannot be " + pybind11::repr(value).cast<std::string>());
  }
}

// What one word of Python's stands for.
template <typename Kind>
using Words = std::vector<std::pair<std::string_view, Kind>>;

template <typename Kind>
Kind word(const std::string& given, const Words<Kind>& words, const std::string& where) {
  std::string known;
  for (const auto& [text, kind] : words) {
    if (text == given) {
      return kind;
    }
    known += (known.empty() ? "" : ", ") + std::string(text);
  }
  throw SpecError("gradc: " + where + " cannot be '" + given + "'; it is one of " + known);
}

class __attribute__((visibility("hidden"))) Spec {
 public:
  Spec(std::string name, pybind11::handle object) : name_(std::move(name)), object_(object) {}

  std::string where(const char* field) const {
    return name_ + "." + field;
  }
  pybind11::object operator[](const char* field) const {
    asked_for_.insert(field);
    if (!pybind11::hasattr(object_, field)) {
      throw SpecError("gradc: " + where(field) + " is missing in " + pybind11::repr(object_).cast<std::string>());
    }
    return object_.attr(field);
  }
  template <typename T>
  T get(const char* field) const {
    return as<T>((*this)[field], where(field));
  }
  // The items of a field, each as a T.
  template <typename T>
  std::vector<T> all(const char* field) const {
    std::vector<T> items;
    for (const pybind11::handle item : (*this)[field]) {
      items.push_back(as<T>(item, where(field)));
    }
    return items;
  }

  // Throws for a field that nobody has asked for so far. `of_python` are those that only Python reads.
  void refuse_others(std::initializer_list<std::string_view> of_python = {}) const {
    auto known = asked_for_;
    known.insert(of_python.begin(), of_python.end());
    for (const auto& [field, value] : pybind11::dict(object_.attr("__dict__"))) {
      if (known.count(field.cast<std::string>()) == 0) {
        throw SpecError("gradc: " + where(field.cast<std::string>().c_str()) + " is unknown");
      }
    }
  }

 private:
  std::string name_;
  pybind11::handle object_;
  mutable std::set<std::string, std::less<>> asked_for_;
};

} // namespace gradc
