#include "executor/csrc/prove.h"

#include <ATen/ATen.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

namespace gradc {
namespace {

template <class T, class Bits>
bool have_same_bits_as(const at::Tensor& ours, const at::Tensor& of_aten) {
  const T *a = ours.const_data_ptr<T>(), *b = of_aten.const_data_ptr<T>();
  for (int64_t i = 0; i < ours.numel(); ++i) {
    if (std::bit_cast<Bits>(a[i]) != std::bit_cast<Bits>(b[i]) && !(std::isnan(a[i]) && std::isnan(b[i]))) {
      return false;
    }
  }
  return true;
}

} // namespace

bool have_same_bits(const at::Tensor& ours, const at::Tensor& of_aten) {
  return ours.scalar_type() == c10::ScalarType::Float ? have_same_bits_as<float, uint32_t>(ours, of_aten)
                                                      : have_same_bits_as<double, uint64_t>(ours, of_aten);
}

at::Tensor TrialNumbers::operator()(at::IntArrayRef sizes, c10::ScalarType dtype) {
  const double step = 0.7 + 0.1 * calls_++;
  const auto places = at::arange(1, c10::multiply_integers(sizes) + 1, at::kDouble);
  const auto ordinary = places.mul(step).sin_();
  const auto every = [&](int64_t nth) { return places.remainder(static_cast<double>(nth)).eq(0); };
  const auto of_dtype = [&](const at::Tensor& numbers) { return numbers.to(dtype).view(sizes); };
  constexpr double infinity = std::numeric_limits<double>::infinity();
  switch (kind_) {
    case Kind::ordinary:
      return of_dtype(ordinary);
    case Kind::negative_zeros:
      return of_dtype(at::full_like(places, -0.0));
    case Kind::zeros_of_both_signs:
      return of_dtype(at::full_like(places, -0.0).masked_fill_(every(3), 0.0));
    case Kind::denormals:
      return of_dtype(ordinary.mul(dtype == c10::ScalarType::Float ? 1e-40 : 1e-310));
    case Kind::with_infinities_and_nans:
      return of_dtype(ordinary.masked_fill(every(97), infinity).masked_fill_(every(151), -infinity).masked_fill_(every(211), std::nan("")));
  }
  TORCH_CHECK(false, "no such kind of numbers");
}

} // namespace gradc
