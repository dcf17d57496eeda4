// Code that was compiled for a Program ahead of time, as another way to run its plan.
//
//     takes(inputs) -> whether it was compiled for such inputs        run(inputs) -> outputs, as run(plan, inputs) has them
//
// Inductor's code is a shared library for one layout of the inputs, and makes new tensors out of numbers. What else a plan does is
// done here: an output that is an input, or another output; version counters of what is written into, and of views.
#pragma once

#include "executor/core/csrc/plan.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace torch::inductor {
class AOTIModelContainerRunner;
}

namespace gradc {

// How an output comes about: the code makes it, as its result `index`; it is the input at `index`, or the output at `index` again;
// or it is the number `index`, or none.
struct Origin {
  enum class Kind : uint8_t { made, input, again, number, none };
  Kind kind = Kind::none;
  int64_t index = 0;
};

// What the code was compiled for, and what it leaves to do. `inputs`: the layout of a tensor, or what another value is.
// `written`: positions of the inputs that it writes into. `counted`: (input, how often eager counts its version up).
// `views`: (output, whether its base is an input, number of that input or output): the two have one version counter.
// `may_raise`: it checks numbers, such as indices.
struct CandidateSpec {
  std::string path;
  int64_t num_threads = 1;
  std::vector<std::pair<std::optional<Meta>, c10::IValue>> inputs;
  std::vector<at::Tensor> constants;
  std::vector<Origin> outputs;
  std::vector<size_t> written;
  std::vector<std::pair<size_t, int64_t>> counted;
  std::vector<std::tuple<size_t, bool, size_t>> views;
  bool may_raise = false;
};

class Candidate {
 public:
  // Loads the library. Throws what the loader throws.
  explicit Candidate(CandidateSpec spec);
  ~Candidate();
  Candidate(const Candidate&) = delete;
  Candidate& operator=(const Candidate&) = delete;

  bool takes(const std::vector<c10::IValue>& inputs) const;

  // Below autograd, as a plan's steps. The inputs are taken over, so that they die where they are read last.
  std::vector<c10::IValue> run(std::vector<c10::IValue> inputs) const;

  // True if what it raised may be met again by the plan's steps, on the same inputs: nothing was written into, and they are kept.
  bool may_be_repeated() const {
    return spec_.may_raise && spec_.written.empty();
  }

 private:
  bool is_written_alone(const std::vector<c10::IValue>& inputs) const;

  const CandidateSpec spec_;
  std::vector<bool> is_kept_; // inputs that are asked for after the run
  std::unique_ptr<torch::inductor::AOTIModelContainerRunner> runner_;
};

} // namespace gradc
