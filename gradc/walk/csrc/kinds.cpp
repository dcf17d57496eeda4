#include "walk/csrc/kinds.h"

#include "csrc/torch_internals.h"
#include "walk/csrc/pointer_map.h"

#include <c10/util/Type.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/functions/tensor.h>
#include <torch/csrc/autograd/generated/Functions.h>
#include <torch/version.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <typeinfo>
#include <vector>

namespace gradc {

using torch::autograd::AccumulateGrad;
using torch::autograd::CopySlices;
using torch::autograd::Node;

namespace {

// Something that is true of the generated nodes whose names begin so, and why that matters.
struct NodeFact {
  const char* why;
  std::vector<std::string_view> prefixes;
};

// Generated nodes that run live.
const std::vector<NodeFact>& facts_of_live_nodes() {
  static const std::vector<NodeFact> facts = {
      NodeFact{
          "its formula takes a slower way, with other bits or strides, when a mode records",
          {"Cumprod", "Prod", "Linalg", "MaxBackward1", "MinBackward1", "Median", "Nanmedian", "Det", "Slogdet", "Logdet", "Svd",
           "Norm", "MaskedFillBackward1", "MaskedSelect", "Ormqr"}},
#if TORCH_VERSION_MINOR >= 14
      NodeFact{
          "the same: where a mode records, it copies what it else writes in place; see backward/minmax_subgradients.py",
          {"Maximum", "Minimum", "Fmax", "Fmin", "ClampMinBackward1", "ClampMaxBackward1", "ClampBackward0"}},
#endif
      NodeFact{
          "what its kernel returns has other strides than on fake tensors, so that no trace would serve other sizes",
          {"MkldnnRnnLayer"}}};
  return facts;
}

bool runs_live(std::string_view name) {
  const auto& facts = facts_of_live_nodes();
  return std::any_of(facts.begin(), facts.end(), [&](const NodeFact& fact) {
    const auto& prefixes = fact.prefixes;
    return std::any_of(prefixes.begin(), prefixes.end(), [&](std::string_view prefix) { return name.rfind(prefix, 0) == 0; });
  });
}

Kind find_kind(const Node& node) {
  if (dynamic_cast<const AccumulateGrad*>(&node)) {
    return Kind::leaf;
  }
  if (dynamic_cast<const CopySlices*>(&node)) {
    return Kind::slices;
  }
  if (is_python(node)) {
    return Kind::python;
  }
  const auto name = c10::demangle(typeid(node).name());
  const std::string generated = "torch::autograd::generated::";
  const bool is_known = name == "torch::autograd::CopyBackwards" ||
      (name.rfind(generated, 0) == 0 && !runs_live(std::string_view(name).substr(generated.size())));
  return is_known ? Kind::generated : Kind::opaque;
}

} // namespace

Kind kind_of(const Node& node) {
  thread_local PointerMap known;
  const void* type = &typeid(node);
  const auto found = known.find(type);
  return found >= 0 ? static_cast<Kind>(found) : static_cast<Kind>(known.insert(type, static_cast<int32_t>(find_kind(node))).first);
}

bool keeps_number(const Node& node) {
  return typeid(node) == typeid(torch::autograd::generated::MulBackward0) ||
      typeid(node) == typeid(torch::autograd::generated::DivBackward0);
}

bool is_capturable(const Node& node, Kind kind) {
  if (kind == Kind::slices) {
    const auto& slices = static_cast<const CopySlices&>(node);
    return !slices.view_fn && slices.fn && kind_of(*slices.fn) == Kind::generated;
  }
  return kind == Kind::generated;
}

} // namespace gradc
