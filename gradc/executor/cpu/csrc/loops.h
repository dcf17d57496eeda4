// Loops over memory: pointwise ops whose every bit is fixed.
//
// Each element is one IEEE operation, a comparison, a choice, or several operations that ATen rounds one by one. Compiled
// without contraction (setup.py), for the machine's vector registers. tests/executor/test_direct.py compares them with ATen
// on subnormals, infinities and NaNs; of two NaNs either may come through.
#pragma once

#include "executor/core/csrc/payload.h"

#include <string>
#include <string_view>
#include <vector>

// One clone of each loop for machines with AVX2 and fused multiply-adds. Sanitizers cannot do with what chooses it.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && __GNUC__ >= 12 && !defined(__SANITIZE_ADDRESS__)
#define GRADC_WIDE __attribute__((target_clones("arch=x86-64-v3", "default")))
#else
#define GRADC_WIDE
#endif

// Where functions may be written for one kind of registers.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define GRADC_HAS_TILES
#endif

namespace gradc {

// The loops of an op. `parameters`, one letter for each of its arguments and for what is known beside them (Step in plan.h): T a tensor
// of the loop's dtype; t the same, or a number in its place; B a bool tensor; N a number; 0 and 1 those constants. Numbers come as one
// element of the dtype.
struct Loops {
  std::string_view parameters;
  bool makes_bool = false;
  bool is_fused = false; // as ATen's kernels are for machines that have fused multiply-adds
  Loop on_float = nullptr, on_double = nullptr, on_bool = nullptr;
  Loop with_number_float = nullptr, with_number_double = nullptr;
};

// The name of an op that an op in place has out of place: "aten::add.Tensor" for "aten::add_.Tensor".
std::string out_of_place(std::string_view op);

// The name of an op that an op out of place has in place.
std::string in_place(std::string_view op);

// The ops that have loops, in place, too.
std::vector<std::string> ops_with_loops();

// Null where there are none. An op in place, such as "aten::add_.Tensor", has those of "aten::add.Tensor".
const Loops* find_loops(std::string_view op);

} // namespace gradc
