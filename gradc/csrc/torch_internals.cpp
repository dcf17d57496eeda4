#include "csrc/torch_internals.h"

#include "csrc/symbol_table.h"

#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/functions/tensor.h>
#include <torch/csrc/autograd/python_cpp_function.h>
#include <torch/csrc/autograd/python_hook.h>

#include <dlfcn.h>
#include <link.h>

#include <atomic>
#include <cstddef>
#include <string_view>
#include <typeinfo>

namespace gradc {

using torch::autograd::FunctionPreHook;
using torch::autograd::GraphTask;

namespace {

void* torchs_library() {
  return dlopen("libtorch_cpu.so", RTLD_LAZY | RTLD_NOLOAD);
}

} // namespace

GraphTask& current_graph_task() {
  const auto* member = reinterpret_cast<const char*>(torch::autograd::get_current_graph_task_exec_info());
  TORCH_INTERNAL_ASSERT(member != nullptr, "asked for outside of a backward pass");
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Winvalid-offsetof"
  const char* task = member - offsetof(GraphTask, exec_info_);
#pragma GCC diagnostic pop
  return *const_cast<GraphTask*>(reinterpret_cast<const GraphTask*>(task));
}

c10::intrusive_ptr<torch::autograd::Node> node_in_copy_slices(PyObject* node) {
  TORCH_CHECK_TYPE(torch::autograd::THPCppFunction_Check(node), "expected a CopySlices node");
  const auto& held = reinterpret_cast<torch::autograd::THPCppFunction*>(node)->cdata;
  const auto* slices = dynamic_cast<const torch::autograd::CopySlices*>(held.get());
  TORCH_CHECK_TYPE(slices != nullptr, "expected a CopySlices node, got ", held->name());
  return slices->fn;
}

bool is_python(const torch::autograd::Node& node) {
  return std::string_view(typeid(node).name()).ends_with("6PyNodeE");
}

std::optional<size_t> output_of(const FunctionPreHook& hook) {
  const std::string_view name = typeid(hook).name();
  if (name.ends_with("PyFunctionTensorPreHookE")) {
    return static_cast<const torch::autograd::PyFunctionTensorPreHook&>(hook).value_idx;
  }
  return std::nullopt;
}

void put_around(std::unique_ptr<FunctionPreHook>& hook, FunctionPreHook* wrapper) {
  static_assert(sizeof(hook) == sizeof(FunctionPreHook*));
  std::atomic_ref(reinterpret_cast<FunctionPreHook*&>(hook)).store(wrapper, std::memory_order_release);
}

torch::autograd::ViewInfo& backward_view(torch::autograd::DifferentiableViewMeta& meta) {
  return const_cast<torch::autograd::ViewInfo&>(meta.get_backward_view());
}

std::mutex& mutex_of(torch::autograd::Node& node) {
  struct Shown : torch::autograd::Node {
    static std::mutex& of(torch::autograd::Node& node) {
      return node.*(&Shown::mutex_);
    }
  };
  return Shown::of(node);
}

void* function_of_torchs_libraries(const char* name) {
  void* library = torchs_library();
  return library ? dlsym(library, name) : nullptr;
}

std::unordered_map<std::string, void*> hidden_functions_of_torch(const std::string& prefix) {
  const link_map* map = nullptr;
  void* library = torchs_library();
  if (!library || dlinfo(library, RTLD_DI_LINKMAP, &map) != 0) {
    return {};
  }
  std::unordered_map<std::string, void*> functions;
  for (const auto& [name, place] : functions_in_symbol_table(map->l_name, prefix)) {
    functions.emplace(name, reinterpret_cast<void*>(map->l_addr + place));
  }
  return functions;
}

} // namespace gradc
