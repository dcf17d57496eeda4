#include "walk/csrc/walk.h"

#include "csrc/devices.h"
#include "csrc/plain.h"
#include "walk/csrc/kinds.h"
#include "walk/csrc/visit.h"

#include <torch/csrc/autograd/functions/basic_ops.h>
#include <torch/csrc/autograd/input_metadata.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/csrc/dynamo/compiled_autograd.h>

#include <algorithm>
#include <array>
#include <numeric>

namespace gradc {

using torch::autograd::AccumulateGrad;
using torch::dynamo::autograd::AutogradCompilerCall;
using torch::dynamo::autograd::CompiledNodeArgs;
using torch::dynamo::autograd::NodeCall;
using torch::dynamo::autograd::SizeInput;

namespace {

constexpr uint32_t max_edges = 2000;
constexpr size_t max_nodes_looked_at = 8;
constexpr auto leaves_a_graph = "create_graph";

// Whether a generated node may read what requires a gradient: it does, or hooks of the user's unpack what it saved.
bool reads_history(Node& node) {
  AutogradCompilerCall compiler(SizeInput::STATIC);
  NodeCall call(0, c10::intrusive_ptr<Node>::reclaim_copy(&node));
  CompiledNodeArgs arguments(compiler, call);
  node.compiled_args(arguments);
  const auto& held = compiler.tensor_args.inputs;
  return !compiler.sv_to_hooks.empty() || !compiler.lifted_ivalue_args.args.empty() ||
      std::any_of(held.begin(), held.end(), [](const at::Tensor& tensor) { return tensor.requires_grad(); });
}

uint64_t packed(std::array<int8_t, 8> parts) {
  uint64_t word = 0;
  std::memcpy(&word, parts.data(), sizeof(word));
  return word;
}

void append_input_metadata(Bytes& key, Numbers& numbers, const Node& node) {
  append(key, node.num_inputs());
  for (uint32_t i = 0; i < node.num_inputs(); ++i) {
    const auto& metadata = node.input_metadata(i);
    append(key, metadata.was_default_constructed());
    if (metadata.was_default_constructed()) {
      continue;
    }
    if (metadata.is_tensor_subclass() || metadata.is_nested_tensor()) {
      throw Unsupported("tensor subclass");
    }
    const auto& options = metadata.options();
    const auto shape = metadata.shape_as_dim_vector();
    const auto grad_dtype = metadata.grad_dtype();
    append(key, packed({static_cast<int8_t>(c10::typeMetaToScalarType(options.dtype())), static_cast<int8_t>(options.layout()),
        static_cast<int8_t>(options.device().type()), options.device().index(),
        static_cast<int8_t>(grad_dtype ? static_cast<int8_t>(*grad_dtype) : -1), static_cast<int8_t>(shape.size())}));
    for (const auto& size : shape) {
      if (size.is_symbolic()) {
        throw Unsupported("symbolic sizes");
      }
      numbers.push_back(size.as_int_unchecked());
    }
  }
}

} // namespace

bool leaves_graph_at_once(const edge_list& roots, const std::vector<const Node*>& asked_for) {
  Node* node = roots.size() == 1 ? roots[0].function.get() : nullptr;
  for (size_t number = 0; node && number < max_nodes_looked_at && is_capturable(*node, kind_of(*node)); ++number) {
    if (std::find(asked_for.begin(), asked_for.end(), node) != asked_for.end()) {
      return false;
    }
    if (reads_history(*node)) {
      return true;
    }
    const auto& edges = node->next_edges();
    node = edges.size() == 1 ? edges[0].function.get() : nullptr;
  }
  return false;
}

size_t input_numbers(const Walk& walk, const Edge& edge) {
  size_t position = walk.nodes[walk.index_of(edge.function.get())].input_numbers;
  for (uint32_t i = 0; i < edge.input_nr; ++i) {
    const auto& metadata = edge.function->input_metadata(i);
    position += metadata.was_default_constructed() ? 0 : metadata.shape_as_dim_vector().size();
  }
  return position;
}

void append_metadata(Bytes& key, Numbers& numbers, const at::Tensor& tensor) {
  append(key, tensor.defined());
  if (!tensor.defined()) {
    return;
  }
  const auto* impl = tensor.unsafeGetTensorImpl();
  const auto device = tensor.device();
  const int bits = tensor.is_conj() | tensor.is_neg() << 1 | impl->is_wrapped_number() << 2 | tensor.requires_grad() << 3 |
      tensor.is_mkldnn() << 4;
  append(key, packed({static_cast<int8_t>(tensor.scalar_type()), static_cast<int8_t>(device.type()), device.index(),
      static_cast<int8_t>(tensor.layout()), static_cast<int8_t>(bits), static_cast<int8_t>(tensor.dim())}));
  const auto sizes = tensor.sizes();
  numbers.insert(numbers.end(), sizes.begin(), sizes.end());
  if (tensor.layout() == at::kStrided) {
    const auto strides = tensor.strides();
    numbers.insert(numbers.end(), strides.begin(), strides.end());
  }
}

Walk::Walk(Request asked) : request(std::move(asked)) {
  if (request.create_graph && request.accumulates) {
    throw Unsupported(leaves_a_graph);
  }
  key.reserve(1 << 15);
  numbers.reserve(1 << 12);
  tensors.reserve(256);
  number_nodes();
  if (request.is_partial) {
    find_needed();
  }
  append(key, ambient.autocast);
  append(key, ambient.modes());
  add_roots();
  for (const auto& grad : request.grads) {
    add_tensor(grad);
  }
  num_grads = tensors.size();
  for (size_t i = 0; i < nodes.size(); ++i) {
    auto& live = nodes[i];
    live.begin = key.size();
    add_node(live);
    live.first_tensor = tensors.size();
    if (!live.is_opaque && live.is_needed) {
      const auto visitor = visitor_of(*live.node);
      if (live.accumulate) {
        add_leaf(live);
      } else if (!visitor || !visitor(*this, live)) {
        add_state(i);
      }
    }
    if (request.create_graph && live.is_opaque && live.is_needed) {
      refuse_graph_behind(*live.node);
    }
    live.last_tensor = tensors.size();
    live.end = key.size();
  }
  add_tensors();
}

int32_t Walk::add_tensor(const at::Tensor& tensor) {
  if (!tensor.defined()) {
    append(key, -1);
    return -1;
  }
  const auto [index, is_new] = tensor_index_.insert(tensor.unsafeGetTensorImpl(), static_cast<int32_t>(tensors.size()));
  if (is_new) {
    if (request.create_graph && tensor.requires_grad()) {
      throw Unsupported(leaves_a_graph);
    }
    tensors.push_back(tensor);
  }
  append(key, index);
  return index;
}

int32_t Walk::tensor_index(const at::Tensor& tensor) const {
  return tensor_index_.find(tensor.unsafeGetTensorImpl());
}

void Walk::add_leaf(LiveNode& live) {
  const auto& variable = live.accumulate->variable;
  add_tensor(variable);
  live.grad = add_tensor(std::as_const(variable).grad());
}

// The state of any generated node, as its own compiled_args tells it. Each is asked by itself: asked together, a node would not
// name again what one before it holds, a number too.
void Walk::add_state(size_t node) {
  auto& live = nodes[node];
  AutogradCompilerCall compiler(SizeInput::STATIC);
  NodeCall call(static_cast<uint32_t>(node), live.node);
  CompiledNodeArgs arguments(compiler, call);
  live.node->compiled_args(arguments);
  if (!compiler.sv_to_hooks.empty() || !compiler.lifted_ivalue_args.args.empty()) {
    live.is_opaque = true; // what it saved is unpacked by the user's hooks, when it runs
    append(key, true);
    return;
  }
  const auto part = arguments.key();
  append(key, part.key_size);
  key.add(part.key, part.key_size);
  live.sizes = numbers.size();
  live.num_sizes = compiler.all_size_inputs.size();
  for (const auto& size : compiler.all_size_inputs) {
    numbers.push_back(size.value);
  }
  append(key, live.num_sizes);
  std::vector<int32_t> found;
  for (const auto& held : compiler.tensor_args.inputs) {
    found.push_back(add_tensor(held));
  }
  add_numbers(node, found);
}

// A node that runs live under create_graph must be a generated one with hooks, whose formula reads nothing with a history.
void Walk::refuse_graph_behind(Node& node) {
  if (!is_capturable(node, kind_of(node)) || reads_history(node)) {
    throw Unsupported(leaves_a_graph);
  }
}

// Numbers that a node saved as tensors reach a recording mode as plain numbers. Those of products and quotients are known
// again, and stay inputs; any other is part of the key.
void Walk::add_numbers(size_t node, const std::vector<int32_t>& found) {
  std::vector<size_t> numbers;
  for (const auto i : found) {
    if (tensors[i].unsafeGetTensorImpl()->is_wrapped_number()) {
      numbers.push_back(i);
    }
  }
  if (numbers.empty()) {
    return;
  }
  const bool is_input = numbers.size() == 1 && keeps_number(*nodes[node].node) && !tensors[numbers[0]].is_complex();
  append(key, is_input);
  if (is_input) {
    number_inputs.emplace_back(node, numbers[0]);
    return;
  }
  for (const auto i : numbers) {
    key.add(tensors[i].const_data_ptr(), tensors[i].element_size());
  }
}

void Walk::number_nodes() {
  const auto visit = [this](const Edge& edge) {
    if (!edge.is_valid()) {
      return -1;
    }
    const auto [index, is_new] = index_.insert(edge.function.get(), static_cast<int32_t>(nodes.size()));
    if (is_new) {
      LiveNode live;
      live.node = edge.function;
      nodes.push_back(std::move(live));
    }
    return index;
  };
  nodes.reserve(512);
  targets_.reserve(1024);
  for (const auto& root : request.roots) {
    visit(root);
  }
  for (size_t i = 0; i < nodes.size(); ++i) {
    for (const auto& edge : nodes[i].node.get()->next_edges()) {
      targets_.push_back(visit(edge));
    }
  }
}

int32_t Walk::index_of(const Node* node) const {
  return index_.find(node);
}

// As GraphTask::init_to_execute: a node runs if a path from it leads to an output asked for.
void Walk::find_needed() {
  for (auto& live : nodes) {
    live.is_needed = false;
  }
  for (size_t number = 0; number < request.outputs.size(); ++number) {
    const auto& edge = request.outputs[number];
    const auto index = index_of(edge.function.get());
    if (index < 0) {
      continue;
    }
    if (request.accumulates) {
      nodes[index].is_needed = true;
    } else {
      nodes[index].captures.emplace_back(edge.input_nr, number);
    }
  }
  std::vector<uint32_t> upwards(nodes.size());
  std::iota(upwards.begin(), upwards.end(), 0);
  std::sort(upwards.begin(), upwards.end(), [this](uint32_t a, uint32_t b) {
    return nodes[a].node->topological_nr() < nodes[b].node->topological_nr();
  });
  for (const auto index : upwards) {
    for (const auto& edge : nodes[index].node->next_edges()) {
      nodes[index].is_needed = nodes[index].is_needed || (edge.is_valid() && nodes[index_of(edge.function.get())].is_run());
    }
  }
}

void Walk::add_roots() {
  append(key, request.create_graph);
  append(key, request.accumulates);
  append(key, request.is_partial);
  append(key, request.roots.size());
  for (const auto& root : request.roots) {
    append(key, index_of(root.function.get()));
    append(key, root.input_nr);
  }
  append(key, request.outputs.size());
  for (const auto& output : request.outputs) {
    append(key, index_of(output.function.get()));
    append(key, output.input_nr);
  }
}

void Walk::add_node(LiveNode& live) {
  Node& node = *live.node;
  const auto kind = kind_of(node);
  if (node.num_inputs() + node.num_outputs() > max_edges) {
    throw Unsupported("node with thousands of edges"); // the length of compiled_args's key is a 16-bit number
  }
  append(key, &typeid(node)); // one address for each type in a process
  append(key, live.is_needed);
  live.input_numbers = numbers.size();
  append_input_metadata(key, numbers, node);
  append(key, node.num_outputs());
  for (const auto& edge : node.next_edges()) {
    append(key, targets_[next_target_++]);
    append(key, edge.input_nr);
  }
  live.accumulate = kind == Kind::leaf ? static_cast<AccumulateGrad*>(live.node.get()) : nullptr;
  const bool is_leaf = live.accumulate && live.accumulate->variable.defined() &&
      live.accumulate->variable.requires_grad() && !live.accumulate->variable.grad_fn();
  live.is_opaque = has_hooks(node) || !(is_leaf || is_capturable(node, kind));
  append(key, live.is_opaque);
}

// Metadata of every input, and which of them are one tensor under two handles: a Program may read either.
void Walk::add_tensors() {
  PointerMap storages;
  std::vector<bool> is_grad(tensors.size());
  for (const auto& live : nodes) {
    if (live.grad >= 0) {
      is_grad[live.grad] = true;
    }
  }
  for (uint32_t i = 0; i < tensors.size(); ++i) {
    const auto& tensor = tensors[i];
    if (tensor.layout() != at::kStrided || tensor.is_nested()) {
      throw Unsupported("tensor that is not strided");
    }
    if (tensor.is_quantized()) {
      throw Unsupported("quantized tensor");
    }
    if (!has_plain_keys(tensor, /*may_be_lazy=*/true)) { // the key tells lazy ones apart
      throw Unsupported("tensor subclass");
    }
    if (!is_on(tensor, &KnownDevice::is_captured)) {
      throw Unsupported("device other than the CPU");
    }
    tensor_numbers.push_back(numbers.size());
    append_metadata(key, numbers, tensor);
    const auto [first, is_new] = storages.insert(tensor.storage().unsafeGetStorageImpl(), static_cast<int32_t>(i));
    append(key, first);
    if (is_new) {
      continue;
    }
    numbers.push_back(tensor.storage_offset() - tensors[first].storage_offset());
    if (is_grad[i] != is_grad[first]) {
      throw Unsupported("gradient that shares memory with a saved tensor");
    }
  }
}

std::vector<uint32_t> Walk::order() const {
  std::vector<uint32_t> order(nodes.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [this](uint32_t a, uint32_t b) {
    return nodes[a].node->sequence_nr() > nodes[b].node->sequence_nr();
  });
  return order;
}

std::vector<bool> Walk::ties(const std::vector<uint32_t>& order) const {
  std::vector<bool> ties;
  for (size_t i = 1; i < order.size(); ++i) {
    ties.push_back(nodes[order[i - 1]].node->sequence_nr() == nodes[order[i]].node->sequence_nr());
  }
  return ties;
}

bool Walk::has_order(const std::vector<uint32_t>& order, const std::vector<bool>& ties) const {
  if (order.size() != nodes.size()) {
    return false;
  }
  for (size_t i = 1; i < order.size(); ++i) {
    const auto before = nodes[order[i - 1]].node->sequence_nr(), after = nodes[order[i]].node->sequence_nr();
    if (ties[i - 1] ? before != after : before <= after) {
      return false;
    }
  }
  return true;
}

} // namespace gradc
