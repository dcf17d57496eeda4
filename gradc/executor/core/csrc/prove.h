// Is a kernel of ours this machine's ATen's? Asked before it is used: ATen's registers, instructions and libraries differ between
// machines.
//
//   prove:          (claim, trial: numbers -> bool) -> bool   the trial holds for numbers of every kind
//   have_same_bits: (ours, of_aten) -> bool                   the equality of gradc/bits.py: -0 is not 0, a NaN is like any other
//   proofs:         () -> {claim: bool}                       what was asked, each claim once in the whole process
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <type_traits>
#include <vector>

namespace gradc {

// Of so many numbers.
template <class T>
bool have_same_bits(const T* ours, const T* of_aten, int64_t size);

// Of two contiguous tensors of float, double or bfloat16. Those of other sizes or dtypes have other bits.
bool have_same_bits(const at::Tensor& ours, const at::Tensor& of_aten);

// Of a tensor that a trial makes: what is larger is not tried.
inline constexpr int64_t most_tried_elements = int64_t{1} << 25;

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

// That a kernel is ATen's: for a dtype, and for `shape`, whatever tells its calls apart; {} for all.
struct Claim {
  std::string kernel;
  c10::ScalarType dtype = c10::ScalarType::Float;
  std::vector<int64_t> shape;
  auto operator<=>(const Claim&) const = default;
};

using Trial = std::function<bool(TrialNumbers)>;
using OwnTrial = std::function<bool()>; // with numbers of its own

// Tries below autograd and autocast, and where no mode looks on. What a trial raises goes on to the caller, and proves nothing.
bool prove(const Claim& claim, const Trial& trial);
bool prove(const Claim& claim, const OwnTrial& trial);

std::map<Claim, bool> proofs();

} // namespace gradc
