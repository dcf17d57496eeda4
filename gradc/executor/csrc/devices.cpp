// The devices that have kernels or graphs, a row for each.
#include "executor/core/csrc/devices.h"
#include "executor/cpu/csrc/kernels.h"
#include "executor/cuda/csrc/graph.h"

namespace gradc {

const DeviceKernels* kernels_of(c10::DeviceType type) {
  static const DeviceKernels* const rows[] = {&cpu_kernels()};
  for (const DeviceKernels* row : rows) {
    if (row->type == type) {
      return row;
    }
  }
  return nullptr;
}

bool has_graphs(c10::DeviceType type) {
  return type == c10::DeviceType::CUDA ? has_cuda_graphs() : at::has_graph_impl(type);
}

std::unique_ptr<at::GraphImplInterface> make_graph(c10::DeviceType type) {
  return type == c10::DeviceType::CUDA ? make_cuda_graph() : at::create_graph_impl(type);
}

} // namespace gradc
