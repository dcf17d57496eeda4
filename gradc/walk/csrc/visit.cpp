#include "walk/csrc/visit.h"

#include <torch/csrc/autograd/generated/Functions.h>

#include <typeinfo>
#include <vector>

namespace gradc {

namespace {

void add_sizes(Walk& walk, LiveNode& live, const std::vector<c10::SymInt>& sizes) {
  for (const auto& size : sizes) {
    walk.numbers.push_back(size.guard_int(__FILE__, __LINE__));
  }
  live.num_sizes += sizes.size();
  append(walk.key, sizes.size());
}

void add_scalar(Walk& walk, const at::Scalar& scalar) {
  append(walk.key, scalar.type());
  if (scalar.isFloatingPoint()) {
    append(walk.key, scalar.toDouble());
  } else if (scalar.isComplex()) {
    append(walk.key, scalar.toComplexDouble());
  } else {
    append(walk.key, scalar.toLong());
  }
}

bool visit_nothing(Walk& /*walk*/, LiveNode& /*live*/) {
  return true;
}

template <typename T>
bool visit_result(Walk& walk, LiveNode& live) {
  const auto& node = static_cast<const T&>(*live.node);
  if (node.result_.has_hooks()) {
    return false;
  }
  walk.add_tensor(node.result_.unpack(live.node));
  return true;
}

bool visit_addmm(Walk& walk, LiveNode& live) {
  const auto& node = static_cast<const torch::autograd::generated::AddmmBackward0&>(*live.node);
  if (node.mat1_.has_hooks() || node.mat2_.has_hooks()) {
    return false;
  }
  live.sizes = walk.numbers.size();
  add_scalar(walk, node.alpha);
  add_scalar(walk, node.beta);
  walk.add_tensor(node.mat1_.unpack());
  append(walk.key, node.mat1_layout);
  add_sizes(walk, live, node.mat1_sym_sizes);
  add_sizes(walk, live, node.mat1_sym_strides);
  walk.add_tensor(node.mat2_.unpack());
  append(walk.key, node.mat2_layout);
  add_sizes(walk, live, node.mat2_sym_sizes);
  add_sizes(walk, live, node.mat2_sym_strides);
  return true;
}

} // namespace

Visitor visitor_of(const Node& node) {
  using namespace torch::autograd::generated;
  const auto& type = typeid(node);
  if (type == typeid(AddmmBackward0)) {
    return visit_addmm;
  }
  if (type == typeid(TBackward0)) {
    return visit_nothing;
  }
  if (type == typeid(TanhBackward0)) {
    return visit_result<TanhBackward0>;
  }
  if (type == typeid(ReluBackward0)) {
    return visit_result<ReluBackward0>;
  }
  return type == typeid(SigmoidBackward0) ? visit_result<SigmoidBackward0> : nullptr;
}

} // namespace gradc
