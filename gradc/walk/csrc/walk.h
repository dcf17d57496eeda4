// A walk of a live autograd graph: its nodes, what they saved, and a flat key of all that decides what backward does.
//
// Layout.     Request: what the caller asked of the engine          Walk: what was found
//             roots, grads, outputs, flags                          nodes   breadth-first from the roots, numbered from 0
//                                                                   tensors what capturable nodes read: inputs of a Program
//                                                                   key     bytes; numbers: sizes, strides and the like
//
// Equality.   Equal keys, numbers and orders mean equal runs. A recording with symbols takes other numbers too (replay/csrc/recording.h).
//
// Capturable. A node that torch generated, without hooks, whose saved tensors have no unpack hooks. Its constants are in the
//             key through its own `compiled_args`. Every other node is opaque: it runs live, with its own hooks, also on a
//             hit, so the key holds its type and edges only.
// create_graph. Captured where the pass leaves no graph, since nothing that its nodes read requires a gradient.
// The GIL.    Held: hooks and gradients may be Python objects. Nothing of the user's runs here.
#pragma once

#include "csrc/ambient.h"
#include "csrc/autograd.h"
#include "walk/csrc/bytes.h"
#include "walk/csrc/pointer_map.h"

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>

#include <cstdint>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace gradc {

using torch::autograd::Edge;
using torch::autograd::edge_list;
using torch::autograd::Node;
using torch::autograd::variable_list;

// What `run_backward` was asked. `outputs` are the edges of `inputs=`; empty with `is_partial` false: every leaf.
struct Request {
  edge_list roots;
  variable_list grads;
  edge_list outputs;
  bool keep_graph = false;
  bool create_graph = false;
  bool is_partial = false;
  bool accumulates = true;
};

// One live node. `begin` and `end` delimit its part of the key. `grad` is the position in `tensors` of a leaf's existing
// gradient, or -1. `captures`: (input of the node, number of the result) of `torch.autograd.grad`. `input_numbers`: where
// the sizes that each input must have begin in Walk::numbers. `sizes` and `num_sizes`: those held for the node's formula.
// `first_tensor` and `last_tensor`: what the node held that no node before it did, in Walk::tensors.
struct LiveNode {
  c10::intrusive_ptr<Node> node;
  torch::autograd::AccumulateGrad* accumulate = nullptr;
  bool is_opaque = false;
  bool is_needed = true;
  size_t begin = 0;
  size_t end = 0;
  int32_t grad = -1;
  size_t input_numbers = 0;
  size_t sizes = 0;
  size_t num_sizes = 0;
  size_t first_tensor = 0;
  size_t last_tensor = 0;
  std::vector<std::pair<uint32_t, size_t>> captures;
  bool is_run() const {
    return is_needed || !captures.empty();
  }
};

using Numbers = std::vector<int64_t>;

// Thrown for what only torch's engine can do; the message is the reason.
struct Unsupported : std::runtime_error {
  using std::runtime_error::runtime_error;
};

class Walk {
 public:
  // Throws Unsupported, or what unpacking a saved tensor throws (freed, or modified in place).
  explicit Walk(Request request);

  // Descending sequence numbers, by node: the order in which the engine prefers ready nodes.
  std::vector<uint32_t> order() const;
  bool has_order(const std::vector<uint32_t>& order, const std::vector<bool>& ties) const;
  std::vector<bool> ties(const std::vector<uint32_t>& order) const;
  int32_t index_of(const Node* node) const;
  int32_t tensor_index(const at::Tensor& tensor) const; // -1: not walked
  // Notes that the present node holds `tensor`; returns its number in `tensors`.
  int32_t add_tensor(const at::Tensor& tensor);

  Request request;
  const Ambient ambient = Ambient::read();
  std::vector<LiveNode> nodes;
  variable_list tensors;
  Bytes key;
  Numbers numbers;
  std::vector<size_t> tensor_numbers; // where the sizes of each tensor begin in numbers; its strides follow
  std::vector<std::pair<size_t, size_t>> number_inputs; // (node, position in tensors) of a number that is an input
  size_t num_grads = 0; // the first tensors are the distinct gradients given

 private:
  void number_nodes();
  void find_needed();
  void add_roots();
  void add_node(LiveNode& live);
  void add_leaf(LiveNode& live);
  static void refuse_graph_behind(Node& node);
  void add_state(size_t node);
  void add_numbers(size_t node, const std::vector<int32_t>& found);
  void add_tensors();

  PointerMap index_;
  PointerMap tensor_index_;
  std::vector<int32_t> targets_; // the node that each edge leads to, in the order of nodes and edges; -1: none
  size_t next_target_ = 0;
};

// Whether a pass under create_graph leaves a graph behind, if one of the first nodes under a single root tells: most need not be
// walked to know. As long as a node is not asked for, and leads to one other only, both run.
bool leaves_graph_at_once(const edge_list& roots, const std::vector<const Node*>& asked_for);

// Where the sizes that the edge's input must have begin in Walk::numbers.
size_t input_numbers(const Walk& walk, const Edge& edge);

// Appends what a kernel can know of a tensor but its data: dtype, device, layout and lazy bits; sizes and strides.
void append_metadata(Bytes& key, Numbers& numbers, const at::Tensor& tensor);

} // namespace gradc
