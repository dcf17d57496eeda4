// Functions of many numbers at once: those of libtorch that ATen's kernels use on this machine.
#pragma once

#include <cstdint>

namespace gradc {

inline constexpr int64_t most_lanes = 16; // of a register

// `numbers[i] = f(numbers[i])`, for a size that fills registers.
struct Map {
  void* function = nullptr;
  void (*run)(void* function, float* numbers, int64_t size) = nullptr;

  void operator()(float* numbers, int64_t size) const {
    run(function, numbers, size);
  }
};

struct VectorFunctions {
  int64_t lanes = 0; // of a register of ATen's; 0 where its functions are not there
  Map exp, log;
};

// For this machine, or what torch was told to take it for.
const VectorFunctions& vector_functions();

// This thread's room for so many numbers, and for what fills the last register.
float* room_for(int64_t size);

} // namespace gradc
