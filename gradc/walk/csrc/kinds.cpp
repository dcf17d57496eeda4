#include "walk/csrc/kinds.h"

#include "walk/csrc/pointer_map.h"

#include <c10/util/Type.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/functions/tensor.h>

#include <algorithm>
#include <array>
#include <string>
#include <typeinfo>

namespace gradc {

using torch::autograd::AccumulateGrad;
using torch::autograd::CopySlices;
using torch::autograd::Node;

namespace {

// Generated nodes that run live: their formulas take a slower way, with other bits or strides, when a mode records; or (the last) what
// their kernel returns has other strides than on fake tensors, so that no trace would serve other sizes.
bool has_other_bits_when_recorded(const std::string& name) {
  static const std::array<const char*, 16> prefixes = {
      "Cumprod", "Prod", "Linalg", "MaxBackward1", "MinBackward1", "Median", "Nanmedian", "Det", "Slogdet", "Logdet", "Svd",
      "Norm", "MaskedFillBackward1", "MaskedSelect", "Ormqr", "MkldnnRnnLayer"};
  return std::any_of(prefixes.begin(), prefixes.end(), [&](const char* prefix) { return name.rfind(prefix, 0) == 0; });
}

Kind find_kind(const Node& node) {
  if (dynamic_cast<const AccumulateGrad*>(&node)) {
    return Kind::leaf;
  }
  if (dynamic_cast<const CopySlices*>(&node)) {
    return Kind::slices;
  }
  const auto name = c10::demangle(typeid(node).name());
  const std::string generated = "torch::autograd::generated::";
  if (name == "torch::autograd::PyNode") {
    return Kind::python;
  }
  const bool is_known = name == "torch::autograd::CopyBackwards" ||
      (name.rfind(generated, 0) == 0 && !has_other_bits_when_recorded(name.substr(generated.size())));
  return is_known ? Kind::generated : Kind::opaque;
}

} // namespace

Kind kind_of(const Node& node) {
  thread_local PointerMap known;
  const void* type = &typeid(node);
  const auto found = known.find(type);
  return found >= 0 ? static_cast<Kind>(found) : static_cast<Kind>(known.insert(type, static_cast<int32_t>(find_kind(node))).first);
}

bool is_capturable(const Node& node, Kind kind) {
  if (kind == Kind::slices) {
    const auto& slices = static_cast<const CopySlices&>(node);
    return !slices.view_fn && slices.fn && kind_of(*slices.fn) == Kind::generated;
  }
  return kind == Kind::generated;
}

} // namespace gradc
