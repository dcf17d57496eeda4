// What a device gives the executor.
//
//     kernels_of(device) -> DeviceKernels, or null: then every call there goes through the dispatcher
//     KernelRow {ops, find}: (plan, step) -> its exact call, or none where the step does not fit
//
// Exact calls, while the frame is exact, leave the sizes, strides and bits of the functional call: they are ATen's own kernels, called at less
// cost, or our own, proven beside ATen's (prove.h). A device is added by a row of executor/csrc/devices.cpp, and of csrc/devices.h.
#pragma once

#include "executor/core/csrc/plan.h"

#include <ATen/core/GraphImplInterface.h>

#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

namespace gradc {

using FindExact = Exact (*)(const Plan& plan, const Step& step);

// Exact calls of some ops, with overloads.
struct KernelRow {
  std::vector<std::string> ops;
  FindExact find;
};

// Rows by op. Of two that fit a step the first serves.
class KernelTable {
 public:
  explicit KernelTable(const std::vector<std::vector<KernelRow>>& families);

  // The exact call of a step of the op.
  Exact find(const Plan& plan, const Step& step, const std::string& op) const;

 private:
  std::unordered_map<std::string, std::vector<FindExact>> by_op_;
};

// `exact`: its kernels. `has_full_precision`: whether float32 products are full float32 products in the present settings. Of a plan that
// has run once as foreseen `find_stretches` finds steps that run faster together, by the step that each begins with; `run_stretch` returns
// the step behind them.
struct DeviceKernels {
  c10::DeviceType type;
  const KernelTable& (*exact)();
  bool (*has_full_precision)();
  Stretches (*find_stretches)(const Plan& plan);
  bool (*can_run)(const Stretch& stretch, const Frame& frame);
  Index (*run_stretch)(const Stretch& stretch, Frame& frame);
};

const DeviceKernels* kernels_of(c10::DeviceType type);

// Whether a device records graphs, and a new one: its own, or what its backend has registered with torch.
bool has_graphs(c10::DeviceType type);
std::unique_ptr<at::GraphImplInterface> make_graph(c10::DeviceType type);

// Notes in a step how its device calls it, without the dispatcher. The step is otherwise made.
void choose_kernels(const Plan& plan, Step& step);

} // namespace gradc
