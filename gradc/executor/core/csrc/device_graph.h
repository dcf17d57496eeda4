// One recording of a plan (device_graphs.h): what it reads, and where; what it lends.
#pragma once

#include "executor/core/csrc/device_graphs.h"

#include <ATen/core/GraphImplInterface.h>
#include <c10/core/Storage.h>

#include <atomic>

namespace gradc {

// Where each input's numbers begin; null for what is no tensor.
std::vector<const void*> places_of(const std::vector<c10::IValue>& inputs);

// Memory that a recording writes to, and how many of what leaves hold it.
struct LentMemory {
  explicit LentMemory(c10::Storage storage) : storage(std::move(storage)) {}
  const c10::Storage storage;
  std::atomic<int64_t> num_lent = 0;
};

// What leaves: a value; an input itself, or an earlier output; a view of an input; or a tensor on lent memory. `source` counts in those.
// `input_of_versions`: the input (or else the earlier output) whose version counter it shares, if any.
struct DeviceGraphOutput {
  enum class Kind : uint8_t { value, input, view, lent, same } kind = Kind::value;
  c10::IValue value;
  size_t source = 0;
  c10::DispatchKeySet keys;
  caffe2::TypeMeta dtype;
  std::vector<int64_t> sizes, strides;
  int64_t offset = 0; // of a view: from its input's
  uint32_t version = 0;
  std::optional<size_t> input_of_versions, output_of_versions;
};

// Never writes to the memory of a tensor again, if it was lent: another stream may read it when all tensors on it are gone.
void keep_lent(const at::Tensor& tensor);

class DeviceGraph {
 public:
  using Values = std::vector<c10::IValue>;

  // Records a run, which computes nothing. Inputs that `have_moved` are read from copies. What leaves on one of `copied_memories` is
  // copied.
  DeviceGraph(
      const Plan& plan, c10::Device device, Situation situation, const Values& inputs, const std::vector<bool>& have_moved,
      std::vector<bool> copied_memories);

  // Whether a call fits, and nobody holds what the last one lent.
  bool takes(const Values& inputs, const Situation& now) const;

  Values replay(const Values& inputs);

  // The same for the call that it was recorded for: its versions have been counted.
  Values replay_as_recorded(const Values& inputs);

  // Of the memory that it lends.
  size_t num_bytes() const;

  // Of memories that are held for long, if they are few, those that are to be copied the next time; else what was `known`.
  std::vector<bool> held_memories(std::vector<bool> known) const;

 private:
  using Output = DeviceGraphOutput;

  // What a call must be like: what is no tensor is equal; a tensor is laid out alike, and lies there, or is aligned alike and copied.
  struct Input {
    c10::IValue value;
    at::Tensor memory; // of the copy, all in a row
    c10::ScalarType dtype = c10::ScalarType::Undefined;
    std::vector<int64_t> sizes, strides;
    const void* place = nullptr;
    uint32_t num_writes = 0; // by which the plan moves its version on
  };

  bool fits(const Values& inputs, const Situation& now) const;
  Values read_inputs(const Plan& plan, const Values& inputs, const std::vector<bool>& have_moved);
  void describe_outputs(const Plan& plan, const Values& inputs, const Values& outputs);
  Output describe(const Plan& plan, const c10::IValue& value, const Values& inputs);
  void launch(const Values& inputs);
  Values outputs(const Values& inputs) const;

  const c10::Device device_;
  const Situation situation_;
  std::unique_ptr<at::GraphImplInterface> graph_;
  std::vector<Input> inputs_;
  std::vector<Output> outputs_;
  std::vector<std::shared_ptr<LentMemory>> memories_;
  const std::vector<bool> copied_memories_;
};

} // namespace gradc
