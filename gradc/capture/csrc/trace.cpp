// Tracing: EngineRun over fake tensors with symbolic sizes, by torch's own way of swapping what a node saved.
//
// A generated node's `apply_with_saved` puts stand-ins where it saved tensors and sizes, calls what it takes for a compiler,
// and puts everything back. Our compiler calls the node itself: the formula runs, as eager runs it, on the stand-ins.
#include "capture/csrc/engine_run.h"

#include <ATen/ops/empty_strided.h>
#include <c10/core/SafePyObject.h>
#include <c10/util/ScopeExit.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/functions/tensor.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/dynamo/compiled_autograd.h>
#include <torch/csrc/jit/python/pybind_utils.h>
#include <torch/csrc/utils/pybind.h>

namespace gradc {

namespace py = pybind11;
using torch::autograd::AccumulateGrad;
using torch::autograd::CopySlices;
using torch::autograd::functional_apply_t;
using torch::dynamo::autograd::AutogradCompilerCall;
using torch::dynamo::autograd::CompiledNodeArgs;
using torch::dynamo::autograd::ivalue_list;
using torch::dynamo::autograd::NodeCall;
using torch::dynamo::autograd::PyCompilerGuard;
using torch::dynamo::autograd::PyCompilerInterface;
using torch::dynamo::autograd::SizeInput;
using torch::dynamo::autograd::SwapSavedVariables;
using torch::dynamo::autograd::TensorArgs;
using torch::dynamo::autograd::TraceState;

namespace {

// What one apply_with_saved did. An error waits until the node has its own tensors back.
struct Call {
  Node& node;
  size_t num_outputs;
  std::exception_ptr error;
};
thread_local Call* current = nullptr;

template <typename Function>
variable_list guarded(size_t num_outputs, Function function) {
  if (!current->error) {
    try {
      return function();
    } catch (...) {
      current->error = std::current_exception();
    }
  }
  return variable_list(num_outputs);
}

// torch binds each node's function once in a process: it is passed on, for torch's own compiled autograd to find.
void bind_for_torch(const std::string& name, const functional_apply_t& function, const std::vector<at::TypePtr>& schema) {
  const py::gil_scoped_acquire gil;
  const auto call = [schema, function](std::vector<std::optional<at::Tensor>>& inputs, const py::args& arguments) {
    variable_list tensors;
    for (const auto& input : inputs) {
      tensors.push_back(input.value_or(at::Tensor()));
    }
    ivalue_list values;
    for (size_t i = 0; i < schema.size(); ++i) {
      values.emplace_back(torch::jit::toIValue(arguments[i], schema[i]));
    }
    std::vector<std::optional<at::Tensor>> outputs;
    for (auto& output : function(tensors, values)) {
      outputs.push_back(output.defined() ? std::optional(output) : std::nullopt);
    }
    return outputs;
  };
  py::module_::import("torch._dynamo.compiled_autograd").attr("ops").attr("add")(name, py::cpp_function(call), false, true);
}

struct Compiler : PyCompilerInterface {
  std::string bind_function(
      PyObject* /*compiler*/,
      const std::string& name,
      functional_apply_t function,
      std::vector<at::TypePtr> schema,
      bool /*is_custom_function*/,
      bool /*is_traceable*/) const override {
    bind_for_torch(name, function, schema);
    return name;
  }

  variable_list call_function(
      PyObject* /*compiler*/,
      const char* /*method*/,
      const std::string& /*name*/,
      const variable_list& inputs,
      const ivalue_list& /*arguments*/,
      const c10::IValue& /*metadata*/) const override {
    auto* slices = dynamic_cast<CopySlices*>(&current->node);
    Node& node = slices ? *slices->fn : current->node;
    return guarded(node.num_outputs(), [&] { return node(variable_list(inputs)); });
  }

  // As CopySlices::apply in torch's functions/tensor.cpp.
  variable_list call_copy_slices_prologue(
      PyObject* /*compiler*/,
      const variable_list& inputs,
      const at::TensorGeometry& base,
      const at::TensorGeometry& view) const override {
    return guarded(3, [&]() -> variable_list {
      const auto& grad = inputs.at(0);
      auto result = grad.new_empty_strided_symint(base.sym_sizes(), base.sym_strides());
      result.copy_(grad);
      const auto offset = view.sym_storage_offset() - base.sym_storage_offset();
      auto slice = result.as_strided_symint(view.sym_sizes(), view.sym_strides(), offset);
      return {result, slice, slice.clone(at::MemoryFormat::Contiguous)};
    });
  }

  variable_list call_copy_slices_epilogue(
      PyObject* /*compiler*/,
      const std::vector<bool>& needed,
      const at::Tensor& result,
      const variable_list& grads,
      const at::Tensor& slice) const override {
    return guarded(needed.size(), [&] {
      variable_list outputs(needed.size());
      for (size_t i = 0; i < needed.size(); ++i) {
        if (!needed[i] || !grads.at(i).defined()) {
          continue;
        }
        if (i == 0) {
          slice.copy_(grads[0]);
        }
        outputs[i] = i == 0 ? result : grads[i];
      }
      return outputs;
    });
  }
};

// A saved output is a new handle each time it is unpacked: those are matched with the walk's in their order.
void set_stand_ins(const Walk& walk, const LiveNode& live, const StandIns& stand_ins, TensorArgs& arguments) {
  std::unordered_set<const void*> known;
  for (const auto& tensor : arguments.inputs) {
    known.insert(tensor.unsafeGetTensorImpl());
  }
  size_t next = live.first_tensor;
  for (const auto& tensor : variable_list(arguments.inputs)) {
    auto index = static_cast<size_t>(walk.tensor_index(tensor));
    if (walk.tensor_index(tensor) < 0) {
      while (next < live.last_tensor && known.count(walk.tensors[next].unsafeGetTensorImpl())) {
        ++next;
      }
      if (next >= live.last_tensor) {
        throw Unsupported("saved tensor that was not walked");
      }
      index = next++;
    }
    arguments.lookup(tensor).proxy_tensor = stand_ins.tensors.at(index);
  }
}

} // namespace

variable_list apply_to(Walk& walk, uint32_t node, const StandIns& stand_ins, const variable_list& inputs) {
  auto& live = walk.nodes[node];
  NodeCall node_call(node, live.node);
  AutogradCompilerCall compiler(SizeInput::DYNAMIC);
  {
    const c10::impl::ExcludeDispatchKeyGuard no_modes(c10::python_ks); // unpacking a saved output detaches it
    CompiledNodeArgs arguments(compiler, node_call);
    live.node->compiled_args(arguments);
  }
  set_stand_ins(walk, live, stand_ins, compiler.tensor_args);
  std::vector<std::optional<c10::SymInt>> sizes;
  for (size_t i = live.sizes; i < live.sizes + live.num_sizes; ++i) {
    sizes.emplace_back(stand_ins.numbers[i]);
  }
  Call call{*live.node, live.node->num_outputs(), nullptr};
  TraceState state(std::move(sizes), 0);
  SwapSavedVariables swap(compiler, state, Py_None, node_call);
  const auto restore = c10::make_scope_exit([outer = std::exchange(current, &call)] { current = outer; });
  auto outputs = live.node->apply_with_saved(inputs, swap);
  if (call.error) {
    std::rethrow_exception(call.error);
  }
  return outputs;
}

std::vector<std::optional<torch::autograd::InputMetadata>> EngineRun::traced_metadata(const edge_list& edges) const {
  std::vector<std::optional<torch::autograd::InputMetadata>> all;
  for (const auto& edge : edges) {
    if (!edge.is_valid()) {
      all.emplace_back(std::nullopt);
      continue;
    }
    all.emplace_back(edge.function->input_metadata(edge.input_nr));
    size_t position = input_numbers(walk_, edge);
    for (auto& size : all.back()->mutable_shape_as_dim_vector()) {
      size = stand_ins_->numbers[position++];
    }
  }
  return all;
}

variable_list EngineRun::trace(uint32_t node, variable_list inputs) {
  auto& live = walk_.nodes[node];
  const auto boundary = stand_ins_->boundaries.find(node);
  if (boundary != stand_ins_->boundaries.end()) {
    const auto& [outputs, are_stealable] = boundary->second;
    holders_.note_given(inputs);
    holders_.note_stand_ins(outputs, are_stealable);
    observer_->boundary(node, {inputs, outputs, {}, {}, {}});
    observer_->snapshot(snapshot());
    return outputs;
  }
  if (live.is_opaque) {
    throw Unsupported("node that cannot be traced");
  }
  if (live.accumulate) {
    trace_accumulate_grad(node, std::move(inputs));
    return {};
  }
  observer_->enter(node, inputs);
  variable_list outputs;
  {
    static std::recursive_mutex mutex; // torch has room for one compiler in a process, and asserts that there is none
    const std::lock_guard lock(mutex);
    const PyCompilerGuard guard(std::make_unique<Compiler>());
    outputs = apply_to(walk_, node, *stand_ins_, inputs);
  }
  inputs.clear();
  const auto& edges = live.node->next_edges();
  torch::autograd::validate_outputs(traced_metadata(edges), outputs, [](const std::string& message) { return message; });
  if (observer_->leave(node, outputs)) {
    throw Unsupported("node that cannot be traced");
  }
  return outputs;
}

void EngineRun::trace_accumulate_grad(uint32_t node, variable_list inputs) {
  auto& live = walk_.nodes[node];
  const at::Tensor& new_grad = inputs.at(0);
  if (!new_grad.defined()) {
    return;
  }
  if (holders_.is_from_boundary(new_grad)) {
    throw Unsupported("gradient from a node that cannot be traced");
  }
  const auto position = walk_.tensor_index(live.accumulate->variable);
  const at::Tensor variable = stand_ins_->tensors.at(position);
  at::Tensor grad = live.grad >= 0 ? stand_ins_->tensors.at(live.grad) : at::Tensor();
  record_accumulation(node, inputs, variable, grad);
}

} // namespace gradc
