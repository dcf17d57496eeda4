// Comparing sizes and strides, which are few: a loop takes less time than the call of memcmp behind `==`.
#pragma once

#include <c10/util/ArrayRef.h>

#include <cstddef>

namespace gradc {

inline bool are_equal(c10::IntArrayRef a, c10::IntArrayRef b) {
  if (a.size() != b.size()) {
    return false;
  }
  for (size_t i = 0; i < a.size(); ++i) {
    if (a[i] != b[i]) {
      return false;
    }
  }
  return true;
}

} // namespace gradc
