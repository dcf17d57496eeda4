// Is a kernel of ours this machine's ATen's? Asked before it is used: ATen's registers, instructions and libraries differ between
// machines.
//
//   agrees_with_aten: (trial: numbers -> bool) -> bool   the trial holds for numbers of every kind
//   have_same_bits:   (ours, of_aten) -> bool            the equality of gradc/bits.py: -0 is not 0, a NaN is like any other
//   Proofs:           (key, find) -> what `find` found   asked once for a key, in the whole process
#pragma once

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Tensor.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <map>
#include <mutex>

namespace gradc {

// Of two contiguous tensors of float or double, of one size.
bool have_same_bits(const at::Tensor& ours, const at::Tensor& of_aten);

// The numbers of a trial: of one kind, others at each call.
class TrialNumbers {
 public:
  enum class Kind { ordinary, negative_zeros, zeros_of_both_signs, denormals, with_infinities_and_nans };
  static constexpr Kind kinds[] = {
      Kind::ordinary, Kind::negative_zeros, Kind::zeros_of_both_signs, Kind::denormals, Kind::with_infinities_and_nans};

  explicit TrialNumbers(Kind kind) : kind_(kind) {}

  // `sizes` of them, of either sign where the kind has both.
  at::Tensor operator()(at::IntArrayRef sizes, c10::ScalarType dtype = c10::ScalarType::Float);

 private:
  Kind kind_;
  int calls_ = 0;
};

// Below autograd, and where no mode looks on.
template <class Trial>
bool agrees_with_aten(Trial trial) {
  const at::AutoDispatchBelowADInplaceOrView below;
  const c10::impl::ExcludeDispatchKeyGuard no_modes(c10::python_ks);
  for (const auto kind : TrialNumbers::kinds) {
    if (!trial(TrialNumbers(kind))) {
      return false;
    }
  }
  return true;
}

template <class Key, class Found>
class Proofs {
 public:
  template <class Find>
  Found operator()(const Key& key, Find find) {
    const std::lock_guard lock(mutex_);
    const auto place = known_.find(key);
    return place != known_.end() ? place->second : known_.emplace(key, find()).first->second;
  }

 private:
  std::mutex mutex_;
  std::map<Key, Found> known_;
};

} // namespace gradc
