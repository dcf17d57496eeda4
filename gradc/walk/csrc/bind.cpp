#include "walk/csrc/bind.h"

#include "csrc/convert.h"
#include "nodes/csrc/segment_node.h"
#include "walk/csrc/describe.h"
#include "walk/csrc/walk.h"

#include <c10/util/Type.h>
#include <pybind11/stl.h>
#include <torch/csrc/autograd/functions/basic_ops.h>
#include <torch/csrc/autograd/python_cpp_function.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/autograd/variable.h>

#include <optional>

namespace py = pybind11;

namespace gradc {

namespace {

const at::Tensor& to_tensor(const py::handle& value) {
  if (!THPVariable_Check(value.ptr())) {
    throw Unsupported(value.is_none() ? "gradient of None" : "gradient edge");
  }
  return THPVariable_Unpack(value.ptr());
}

// As THPEngine_run_backward in torch's python_engine.cpp, for tensors. Where that raises, this says Unsupported: then it does.
Request make_request(
    const py::sequence& tensors,
    const py::sequence& grads,
    bool keep_graph,
    const std::optional<py::sequence>& inputs,
    bool accumulates,
    bool create_graph) {
  Request request;
  request.keep_graph = keep_graph;
  request.create_graph = create_graph;
  request.accumulates = accumulates;
  for (const py::handle value : tensors) {
    auto edge = torch::autograd::impl::gradient_edge(to_tensor(value));
    if (!edge.function) {
      throw Unsupported("root without a history");
    }
    request.roots.push_back(std::move(edge));
  }
  for (const py::handle value : grads) {
    request.grads.push_back(to_tensor(value));
  }
  if (request.roots.empty() || request.roots.size() != request.grads.size()) {
    throw Unsupported("roots and gradients that do not match");
  }
  if (!inputs || py::len(*inputs) == 0) {
    return request;
  }
  request.is_partial = true;
  for (const py::handle value : *inputs) {
    const at::Tensor& tensor = to_tensor(value);
    if (!tensor.requires_grad()) {
      throw Unsupported("input that requires no gradient");
    }
    auto node = tensor.grad_fn();
    if (!node) {
      node = torch::autograd::impl::try_get_grad_accumulator(tensor);
    }
    if (accumulates) {
      tensor.retain_grad();
    }
    if (node) {
      request.outputs.emplace_back(node, tensor.output_nr());
    } else {
      request.outputs.emplace_back(c10::make_intrusive<torch::autograd::Identity>(), 0);
    }
  }
  return request;
}

// What a boundary's result must look like: (bytes, sizes and strides).
py::tuple metadata_of(const py::handle& value) {
  Bytes metadata;
  Numbers numbers;
  append_metadata(metadata, numbers, value.is_none() ? at::Tensor() : THPVariable_Unpack(value.ptr()));
  return py::make_tuple(py::bytes(reinterpret_cast<const char*>(metadata.data()), metadata.size()), numbers);
}

py::bytes to_bytes(const Bytes& bytes, size_t begin, size_t end) {
  return py::bytes(reinterpret_cast<const char*>(bytes.data()) + begin, end - begin);
}

std::vector<int64_t> sizes_of(const variable_list& tensors) {
  std::vector<int64_t> sizes;
  for (const auto& tensor : tensors) {
    sizes.insert(sizes.end(), tensor.sizes().begin(), tensor.sizes().end());
  }
  return sizes;
}

// The sizes that a node's inputs must have, or a leaf's own, and those it holds for its formula.
std::vector<int64_t> node_sizes(const Walk& walk, size_t node) {
  std::vector<int64_t> sizes;
  const auto& live = walk.nodes.at(node);
  for (uint32_t i = 0; i < live.node->num_inputs(); ++i) {
    if (!live.node->input_metadata(i).was_default_constructed()) {
      for (const auto& size : live.node->input_metadata(i).shape_as_dim_vector()) {
        sizes.push_back(size.as_int_unchecked());
      }
    }
  }
  const auto held = walk.numbers.begin() + static_cast<int64_t>(live.sizes);
  sizes.insert(sizes.end(), held, held + static_cast<int64_t>(live.num_sizes));
  return sizes;
}

// Where, in the walk's numbers, the sizes stand that each result of a node must have: -1 for a result that nobody reads.
std::vector<int64_t> target_numbers(const Walk& walk, size_t node) {
  std::vector<int64_t> positions;
  const auto& live = walk.nodes.at(node);
  for (uint32_t i = 0; !live.is_needed && i < live.node->num_inputs(); ++i) { // its result is what it is given
    positions.push_back(static_cast<int64_t>(input_numbers(walk, Edge(live.node, i))));
  }
  if (!live.is_needed) {
    return positions;
  }
  for (const auto& edge : live.node->next_edges()) {
    positions.push_back(edge.is_valid() ? static_cast<int64_t>(input_numbers(walk, edge)) : -1);
  }
  return positions;
}

// The kinds of hooks of each node that has any, in the order in which the engine calls them.
py::dict hooks_of(const Walk& walk) {
  py::dict all;
  for (size_t i = 0; i < walk.nodes.size(); ++i) {
    Node& node = *walk.nodes[i].node;
    py::list kinds;
    for (size_t k = 0; k < node.tensor_pre_hooks().size() + node.retains_grad_hooks().size(); ++k) {
      kinds.append("tensor_pre_hook");
    }
    for (size_t k = 0; k < node.pre_hooks().size(); ++k) {
      kinds.append("pre_hook");
    }
    for (size_t k = 0; k < node.post_hooks().size(); ++k) {
      kinds.append("post_hook");
    }
    if (node.tensor_post_acc_grad_hooks()) {
      kinds.append("post_acc_grad_hook");
    }
    if (py::len(kinds) > 0) {
      all[py::int_(i)] = kinds;
    }
  }
  return all;
}

// The tensors that a node held and no node before it did.
py::list held_by(const Walk& walk, size_t node) {
  const auto& live = walk.nodes.at(node);
  py::list held;
  for (size_t i = live.first_tensor; i < live.last_tensor; ++i) {
    held.append(to_python(walk.tensors.at(i)));
  }
  return held;
}

// A compiled region's node as (its gradc.backward.cache.BackwardCache, number of the segment, values of its symbols); None for
// another node.
py::object segment_of(const Walk& walk, size_t node) {
  const auto* segment = dynamic_cast<const SegmentNode*>(walk.nodes.at(node).node.get());
  if (!segment) {
    return py::none();
  }
  auto* backwards = static_cast<PyObject*>(segment->region().derive->backwards());
  return py::make_tuple(py::reinterpret_borrow<py::object>(backwards), segment->number(), segment->symbols());
}

// Which results of a node the engine will need.
std::vector<bool> needed_of(const Walk& walk, size_t node) {
  std::vector<bool> needed;
  for (const auto& edge : walk.nodes.at(node).node->next_edges()) {
    needed.push_back(edge.is_valid() && walk.nodes.at(walk.index_of(edge.function.get())).is_run());
  }
  return needed;
}

// Of what torch.autograd.grad is given. False where that is something else: the walk will say what.
bool leaves_graph(const py::sequence& tensors, const py::sequence& inputs) {
  edge_list roots;
  std::vector<const Node*> asked_for;
  for (const py::handle value : tensors) {
    if (!THPVariable_Check(value.ptr())) {
      return false;
    }
    roots.push_back(torch::autograd::impl::gradient_edge(THPVariable_Unpack(value.ptr())));
  }
  for (const py::handle value : inputs) {
    if (THPVariable_Check(value.ptr())) {
      asked_for.push_back(THPVariable_Unpack(value.ptr()).grad_fn().get());
    }
  }
  return leaves_graph_at_once(roots, asked_for);
}

std::string describe(const Walk& walk) {
  std::string text;
  for (const auto& [name, value] : in_words(walk)) {
    text += name + ": " + value + "\n";
  }
  return text;
}

} // namespace

void bind_walk(py::module_& module) {
  py::register_exception<Unsupported>(module, "Unsupported");
  py::class_<Walk>(module, "Walk", "A live autograd graph, walked: its nodes, saved tensors and key.")
      .def(
          py::init([](const py::sequence& tensors, const py::sequence& grads, bool keep_graph,
                      const std::optional<py::sequence>& inputs, bool accumulates, bool create_graph) {
            return std::make_unique<Walk>(make_request(tensors, grads, keep_graph, inputs, accumulates, create_graph));
          }),
          py::arg(), py::arg(), py::arg(), py::arg(), py::arg(), py::arg("create_graph") = false)
      .def_property_readonly("create_graph", [](const Walk& walk) { return walk.request.create_graph; })
      .def_property_readonly("num_nodes", [](const Walk& walk) { return walk.nodes.size(); })
      .def_property_readonly("tensors", [](const Walk& walk) { return to_python(walk.tensors); })
      .def_readonly("number_inputs", &Walk::number_inputs)
      .def_property_readonly("num_grads", [](const Walk& walk) { return walk.num_grads; })
      .def_property_readonly("key", [](const Walk& walk) { return to_bytes(walk.key, 0, walk.key.size()); })
      .def("describe", describe, "The key in words, a line for each part: its name and value.")
      .def("name", [](const Walk& walk, size_t node) { return walk.nodes.at(node).node->name(); })
      .def("type", [](const Walk& walk, size_t node) {
        const Node& live = *walk.nodes.at(node).node;
        return c10::demangle(typeid(live).name());
      })
      .def("is_opaque", [](const Walk& walk, size_t node) { return walk.nodes.at(node).is_opaque; })
      .def("is_needed", [](const Walk& walk, size_t node) { return walk.nodes.at(node).is_needed; })
      .def("is_leaf", [](const Walk& walk, size_t node) { return walk.nodes.at(node).accumulate != nullptr; })
      .def("key_of", [](const Walk& walk, size_t node) {
        return to_bytes(walk.key, walk.nodes.at(node).begin, walk.nodes.at(node).end);
      })
      .def("variable", [](const Walk& walk, size_t node) { return to_python(walk.nodes.at(node).accumulate->variable); })
      .def("edges", [](const Walk& walk, size_t node) {
        std::vector<int32_t> targets;
        for (const auto& edge : walk.nodes.at(node).node->next_edges()) {
          targets.push_back(edge.is_valid() ? walk.index_of(edge.function.get()) : -1);
        }
        return targets;
      })
      .def("node", [](const Walk& walk, size_t node) {
        return py::reinterpret_steal<py::object>(torch::autograd::functionToPyObject(walk.nodes.at(node).node));
      })
      .def("held", held_by)
      .def("segment", segment_of)
      .def("needed", needed_of)
      .def("hooks", hooks_of)
      .def("root_key", [](const Walk& walk) { return to_bytes(walk.key, 0, walk.nodes.at(0).begin); })
      .def("root_sizes", [](const Walk& walk) { return sizes_of(walk.request.grads); })
      .def("node_sizes", node_sizes)
      .def_readonly("numbers", &Walk::numbers)
      .def_readonly("tensor_numbers", &Walk::tensor_numbers)
      .def("target_numbers", target_numbers)
      .def_property_readonly("order", &Walk::order);
  module.def("leaves_graph", torch::wrap_pybind_function(leaves_graph), "Whether a pass under create_graph is known to leave one.");
  module.def("metadata_of", metadata_of, "What a boundary's result must look like.");
  module.def("is_wrapped_number", [](const py::handle& value) {
    return THPVariable_Unpack(value.ptr()).unsafeGetTensorImpl()->is_wrapped_number();
  });
}

} // namespace gradc
