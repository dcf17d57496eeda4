#include "executor/cpu/csrc/vector_functions.h"

#include "csrc/torch_internals.h"

#include <ATen/Version.h>

#include <algorithm>
#include <string>
#include <vector>

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define GRADC_HAS_SLEEF
#include <immintrin.h>
#endif

namespace gradc {
namespace {

#ifdef GRADC_HAS_SLEEF
[[gnu::target("avx512f")]] void map_512(void* function, float* numbers, int64_t size) {
  auto* const f = reinterpret_cast<__m512 (*)(__m512)>(function);
  for (int64_t i = 0; i < size; i += 16) {
    _mm512_storeu_ps(numbers + i, f(_mm512_loadu_ps(numbers + i)));
  }
}

[[gnu::target("avx2")]] void map_256(void* function, float* numbers, int64_t size) {
  auto* const f = reinterpret_cast<__m256 (*)(__m256)>(function);
  for (int64_t i = 0; i < size; i += 8) {
    _mm256_storeu_ps(numbers + i, f(_mm256_loadu_ps(numbers + i)));
  }
}
#endif

} // namespace

const VectorFunctions& vector_functions() {
  static const VectorFunctions found = [] {
    VectorFunctions functions;
#ifdef GRADC_HAS_SLEEF
    const std::string capability = at::get_cpu_capability();
    const bool is_512 = capability == "AVX512";
    if (is_512 || capability == "AVX2") {
      const auto run = is_512 ? &map_512 : &map_256;
      functions.exp = {function_of_torchs_libraries(is_512 ? "Sleef_expf16_u10" : "Sleef_expf8_u10"), run};
      functions.log = {function_of_torchs_libraries(is_512 ? "Sleef_logf16_u10" : "Sleef_logf8_u10"), run};
      functions.lanes = functions.exp.function && functions.log.function ? (is_512 ? 16 : 8) : 0;
    }
#endif
    return functions;
  }();
  return found;
}

float* room_for(int64_t size) {
  thread_local std::vector<float> numbers;
  numbers.resize(std::max<size_t>(numbers.size(), size + most_lanes));
  return numbers.data();
}

} // namespace gradc
