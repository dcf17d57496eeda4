// Where gradc reaches into torch's private state: one function for each trick, so that a new torch is checked against one file.
//
// All of it was read in torch 2.13.0. Python's side of the same is gradc/torch_private.
#pragma once

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/variable.h>

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>

struct _object; // PyObject

namespace gradc {

// The backward pass that runs in this thread. Torch gives out the addresses of two of its members only: read in torch 2.13.0,
// get_current_graph_task_exec_info in engine.cpp.
torch::autograd::GraphTask& current_graph_task();

// The node of the op that wrote into a view, which rebase_history hid in the CopySlices node of a Python object. A TypeError where it
// is no such node. Torch shows Python no CopySlices::fn: read in torch 2.13.0, functions/tensor.h and python_cpp_function.h.
c10::intrusive_ptr<torch::autograd::Node> node_in_copy_slices(_object* node);

// Whether it is the node of a Function in Python. Torch does not export its class, which is known by its name: read in torch 2.13.0,
// PyNode in python_function.h.
bool is_python(const torch::autograd::Node& node);

// The number of the output whose gradient a tensor hook from Python sees; nullopt for any other hook. Torch does not export the
// class of these hooks, which is known by its name: read in torch 2.13.0, PyFunctionTensorPreHook in python_hook.h.
std::optional<size_t> output_of(const torch::autograd::FunctionPreHook& hook);

// Puts `wrapper`, which owns the hook, where the hook stands. Another thread's engine may be going through the list of hooks: it finds
// the hook or the wrapper around it, and never an empty place. A unique_ptr is taken for the pointer that it holds: read in torch
// 2.13.0, where call_tensor_pre_hooks in engine.cpp takes no lock.
void put_around(std::unique_ptr<torch::autograd::FunctionPreHook>& hook, torch::autograd::FunctionPreHook* wrapper);

// How autograd would make a view again of its base. Torch shows it as const: read in torch 2.13.0, DifferentiableViewMeta in variable.h.
torch::autograd::ViewInfo& backward_view(torch::autograd::DifferentiableViewMeta& meta);

// The lock of a node, which it holds while it runs. Torch shows it to the node's own class: read in torch 2.13.0, node.h.
std::mutex& mutex_of(torch::autograd::Node& node);

// A function of BLAS's or Sleef's that is linked into torch's own library; null if this torch has none of the name.
void* function_of_torchs_libraries(const char* name);

// Functions that are linked into torch's own library and not given out: those whose names begin so, by name. Their places are in the
// library's table of symbols, which torch's wheels keep: read in torch 2.13.0's. None from a library that was stripped, or not of ELF.
std::unordered_map<std::string, void*> hidden_functions_of_torch(const std::string& prefix);

} // namespace gradc
