#include "executor/core/csrc/prove.h"

#include <ATen/ATen.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <mutex>
#include <optional>

namespace gradc {
namespace {

// All claims that were tried, with what came of it.
class Store {
 public:
  std::optional<bool> find(const Claim& claim) {
    const std::lock_guard lock(mutex_);
    const auto place = known_.find(claim);
    return place == known_.end() ? std::nullopt : std::optional(place->second);
  }

  bool add(const Claim& claim, bool holds) {
    const std::lock_guard lock(mutex_);
    return known_.emplace(claim, holds).first->second;
  }

  std::map<Claim, bool> all() {
    const std::lock_guard lock(mutex_);
    return known_;
  }

 private:
  std::mutex mutex_;
  std::map<Claim, bool> known_;
};

Store& store() {
  static Store store;
  return store;
}

} // namespace

template <class T>
bool have_same_bits(const T* ours, const T* of_aten, int64_t size) {
  using Bits = std::conditional_t<sizeof(T) == 2, uint16_t, std::conditional_t<sizeof(T) == 4, uint32_t, uint64_t>>;
  const auto is_nan = [](T number) { return std::isnan(static_cast<double>(number)); };
  return std::equal(ours, ours + size, of_aten, [is_nan](T a, T b) {
    return std::bit_cast<Bits>(a) == std::bit_cast<Bits>(b) || (is_nan(a) && is_nan(b));
  });
}

template bool have_same_bits(const float* ours, const float* of_aten, int64_t size);
template bool have_same_bits(const double* ours, const double* of_aten, int64_t size);

bool have_same_bits(const at::Tensor& ours, const at::Tensor& of_aten) {
  if (ours.sizes() != of_aten.sizes() || ours.scalar_type() != of_aten.scalar_type()) {
    return false;
  }
  TORCH_CHECK(ours.is_contiguous() && of_aten.is_contiguous(), "gradc: bits of contiguous tensors are compared");
  if (ours.scalar_type() == c10::ScalarType::BFloat16) {
    return have_same_bits(ours.const_data_ptr<c10::BFloat16>(), of_aten.const_data_ptr<c10::BFloat16>(), ours.numel());
  }
  if (ours.scalar_type() == c10::ScalarType::Float) {
    return have_same_bits(ours.const_data_ptr<float>(), of_aten.const_data_ptr<float>(), ours.numel());
  }
  return have_same_bits(ours.const_data_ptr<double>(), of_aten.const_data_ptr<double>(), ours.numel());
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

bool prove(const Claim& claim, const Trial& trial) {
  return prove(claim, [&] {
    return std::all_of(std::begin(TrialNumbers::kinds), std::end(TrialNumbers::kinds), [&](TrialNumbers::Kind kind) {
      return trial(TrialNumbers(kind));
    });
  });
}

// Tried without the lock, so that a trial may take its time. Two threads may try the same, and find the same.
bool prove(const Claim& claim, const OwnTrial& trial) {
  if (const auto known = store().find(claim)) {
    return *known;
  }
  const at::AutoDispatchBelowADInplaceOrView below;
  const c10::impl::ExcludeDispatchKeyGuard nobody_else(c10::python_ks | c10::autocast_dispatch_keyset);
  return store().add(claim, trial());
}

std::map<Claim, bool> proofs() {
  return store().all();
}

} // namespace gradc
