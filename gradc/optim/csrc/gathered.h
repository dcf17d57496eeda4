// The tensors of one parameter group that a step works on, read from an optimizer in one go.
//
// torch's `_init_group` makes Python lists of them, which for many small parameters takes longer than the update itself.
#pragma once

#include "optim/csrc/update.h"

#include <memory>
#include <string>
#include <vector>

struct _object; // PyObject

namespace gradc {

// True for a torch.Tensor or torch.nn.Parameter, and of no other class, that is a leaf.
bool is_leaf_of_torchs(_object* param);

class Gathered {
 public:
  // `state` goes from parameter to dict. `keys` name what of the state are operands, and "step" comes last if the update counts
  // steps. Null for what is not as usual: `params` no list, a subclass, state that is still to be made, a value that is no tensor.
  static std::unique_ptr<Gathered> make(_object* params, _object* state, const std::vector<std::string>& keys);

  // Why `update` cannot work on these, or "".
  std::string why_not(const Update& update) const;

  // The step counts that this step makes, each once. Nothing is counted yet.
  std::vector<double> next_counts();

  // Counts the steps, and updates. `numbers` belong to what `next_counts` returned.
  void run(const Update& update, const std::vector<std::vector<double>>& numbers) const;

  // Of the parameters, each once; none if no parameter has a gradient.
  std::vector<at::ScalarType> dtypes() const;

 private:
  std::vector<TensorColumn> operands_; // param, grad, then the state
  TensorColumn steps_;
  std::vector<double> counts_; // of this step, for each parameter
  std::vector<size_t> number_of_; // for each parameter, which of the numbers are its
};

} // namespace gradc
