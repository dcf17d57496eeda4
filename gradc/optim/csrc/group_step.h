// The step of one parameter group, from the dictionaries of its optimizer to memory, in one call.
//
//     GroupStep::step(group, state) -> whether it is done; if not, nothing has happened
//
// What torch's own step made of the group's settings is known when this is made, and holds as long as all that lies in the group,
// but for its parameters and the learning rate, are the very same objects. Parameters, gradients and state are read where they lie.
//
// Quickly.    QuickSteps (quick_step.h) takes the same step in two halves, for several groups at once: prepare and finish. Both run no
//             Python, and prepare refuses what would need it, or would let go of the GIL.
// The GIL.    Held while they are read, and while a small group is updated, so that nothing needs to be kept alive. Python runs
//             before anything is read: it computes the formula's numbers for the counts of steps that the last step lets expect.
//             Where other counts are found, or a dtype that is new, it runs once more, and all is read again.
#pragma once

#include "optim/csrc/arithmetic.h"
#include "optim/csrc/update.h"

#include <ATen/core/Tensor.h>
#include <pybind11/pybind11.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace gradc {

class __attribute__((visibility("hidden"))) GroupStep { // as all that holds pybind11's
 public:
  // `keys` name what of the state are operands, and "step" comes last if the update counts steps. `numbers(lr, count)` gives the
  // formula's numbers, or None, and so does `arithmetic`, if it is not empty; `is_proven(dtype)` says whether they may be used.
  GroupStep(
      const pybind11::dict& group,
      std::shared_ptr<Update> update,
      const std::vector<std::string>& keys,
      pybind11::function numbers,
      std::vector<NumberStep> arithmetic,
      pybind11::function is_proven);

  // False for what is not as usual: other settings, a subclass, state that is still to be made, a value that is no tensor, memory
  // that is shared.
  bool step(PyObject* group, PyObject* state);

  // All of a step but its writing; false where step has to be called instead. Then either finish, or nothing more.
  bool prepare(PyObject* group, PyObject* state);
  void finish();
  // Where the counts of steps lie that finish will write, behind those that are there.
  void add_places_of_counts(std::vector<const void*>& places) const;

 private:
  // The parameters that have gradients, each with its state; borrowed.
  struct Members {
    std::vector<Update::Row> rows;
    std::vector<const at::Tensor*> counts_of_steps; // of each row, as the next
    std::vector<size_t> number_of_count;

    void clear();
    void add(const Update::Row& row, const at::Tensor* count_of_steps);
  };
  // What a state's dictionary held when it had that version. It holds the same, alive, while it has.
  struct KnownState {
    uint64_t version = 0;
    std::vector<PyObject*> values;
    Update::Row row{};
    const at::Tensor* count_of_steps = nullptr;
  };
  struct Setting {
    pybind11::object key, value; // no value: read anew
  };
  using Counts = std::vector<double>;

  bool is_same(PyObject* group) const;
  bool read_numbers(PyObject* rate, const Counts& counts);
  bool compute_numbers(PyObject* rate, const Counts& counts);
  bool read_members(PyObject* params, PyObject* state, Counts& counts);
  bool read_state(PyObject* own, Update::Row& row, const at::Tensor*& count_of_steps, KnownState& known) const;
  bool add_counts(Counts& counts);
  bool do_numbers_fit() const;
  bool is_known(at::ScalarType dtype) const;
  bool are_proven();
  void run(const Counts& counts);
  void update(const Members& members, const std::vector<std::vector<double>>& numbers, const Counts& counts) const;

  std::vector<Setting> settings_;
  std::shared_ptr<Update> update_;
  std::vector<pybind11::str> keys_;
  bool has_counts_;
  pybind11::function numbers_of_, is_proven_;
  std::vector<NumberStep> arithmetic_;
  std::vector<at::ScalarType> proven_;
  Counts expected_;
  bool is_in_python_ = false, is_large_ = false;

  std::vector<KnownState> known_; // of each parameter
  Members members_; // of the present step, as what follows
  std::vector<std::vector<double>> numbers_; // of each count
  int64_t num_elements_ = 0;
};

// True if no two places are one: what is shared would be counted twice.
bool are_apart(std::vector<const void*> places);

// True for a torch.Tensor or torch.nn.Parameter, and of no other class, that is a leaf.
bool is_leaf_of_torchs(PyObject* param);

} // namespace gradc
