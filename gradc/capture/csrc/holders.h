// Who holds a gradient while a backward pass is recorded: what decides whether eager writes over it, or takes it as it is.
//
// Eager counts references. While recording, the recording itself holds every tensor, so this keeps account instead: of
//
//     walked      tensors of the graph and gradients given by the caller: somebody has them
//     waiting     values that wait for nodes: one that waits twice is held twice
//     boundaries  nodes that run as they are, the only ones whose hooks see a value. Of what they take and return, the counts
//                 before and after tell whether a hook has kept it.
//
// Values are known by address, so whoever asks keeps them alive, as a recording does.
#pragma once

#include <torch/csrc/autograd/function.h>

#include <functional>
#include <unordered_map>
#include <unordered_set>
#include <vector>

namespace gradc {

using torch::autograd::variable_list;

// Where the tensor's elements lie; nullptr if it has no memory.
const void* storage_of(const at::Tensor& tensor);
// How often the tensor itself stands among the values.
size_t num_among(const variable_list& values, const at::Tensor& tensor);

class Holders {
 public:
  // The lists of values that wait for nodes now.
  using Waiting = std::function<std::vector<const variable_list*>()>;
  Holders(const variable_list& walked, Waiting waiting);

  // ---- Questions

  // Whether only the run holds the value, and that once. Eager's AccumulateGrad takes such a gradient as .grad itself, and copies
  // any other.
  bool is_held_once(const at::Tensor& tensor) const;
  // Of each input of a node about to run, whether nobody else holds it, nor its memory. Eager writes sums over such a gradient.
  std::vector<bool> stealable_among(const variable_list& inputs) const;
  // Whether the value that waits and its memory are held once, on any run alike. Eager adds `other` to such a value in place.
  bool may_add_in_place(const at::Tensor& tensor, const at::Tensor& other) const;
  // Whether a boundary returned the value, and eager adds `other` to it in place unless a hook has kept it.
  bool is_added_to_unless_kept(const at::Tensor& tensor, const at::Tensor& other) const;
  // The same of what a boundary took, too: nobody writes into that, since it is foreign, but its version counts.
  bool counts_unless_kept(const at::Tensor& tensor, const at::Tensor& other) const;
  // The same as is_added_to_unless_kept, where no hook kept it: on another run one may.
  bool is_added_to_this_time(const at::Tensor& tensor, const at::Tensor& other) const;
  // Whether a hook has kept what a boundary returned or took.
  bool is_kept(const at::Tensor& tensor) const;
  // Whether a boundary took or returned the value: who holds it may differ from run to run.
  bool is_from_boundary(const at::Tensor& tensor) const;
  // Of each value that a boundary has just returned, whether nobody but the run has it, nor its memory.
  std::vector<bool> stealable_among_returned(const variable_list& outputs) const;

  // ---- What a boundary does

  // How many references there are to each input, just before the node runs with a second list of them.
  static std::vector<size_t> count(const variable_list& inputs);
  // The node has run with the second list, and let go of it: what its hooks have kept. `before` is what `count` gave.
  static std::vector<bool> kept_among(
      const variable_list& inputs, const std::vector<size_t>& before, const variable_list& outputs);
  // Notes what a node took, and what `kept_among` gave.
  void note_taken(const variable_list& inputs, const std::vector<bool>& are_kept);
  // The node has run with `results`, of which `inputs` are handles: what is kept of the former is kept.
  void note_kept(const variable_list& inputs, const variable_list& results);
  // Gives what the node returned new handles, since a hook may return what it was given: on the next run it may return something
  // else. What was returned is held, for `as_returned`. `are_stealable` is what `stealable_among` gave before the node ran.
  variable_list note_returned(const variable_list& inputs, const std::vector<bool>& are_stealable, variable_list outputs);
  // Notes that a boundary returned or took these, where nothing is known of who kept them.
  void note(const variable_list& values);
  void note_given(const variable_list& inputs);
  // Notes stand-ins for what a boundary returned, and what `stealable_among_returned` gave for that; empty: nothing is known.
  void note_stand_ins(const variable_list& outputs, const std::vector<bool>& are_stealable);
  // With what boundaries returned in the place of its new handles: one tensor, where eager gives one several times.
  variable_list as_returned(variable_list results) const;

 private:
  // A handle of what a boundary took or returned.
  struct Value {
    const void* first; // stands for all handles of it: a boundary may return one tensor several times
    bool is_kept = false; // of the first: somebody has it
    bool is_stealable = false; // when it was returned, nobody had its memory, nor it, unless it is kept
    bool was_the_runs = false; // nor when it was first taken
    at::Tensor returned;
  };

  Value& add(const at::Tensor& tensor);
  const Value* find(const at::Tensor& tensor) const;
  const void* first_of(const at::Tensor& tensor) const;
  bool is_walked(const at::Tensor& tensor) const;
  size_t num_waiting(const at::Tensor& tensor) const;
  size_t num_waiting_on(const void* storage) const;

  Waiting waiting_;
  std::unordered_set<const void*> walked_;
  std::unordered_set<const void*> foreign_storages_; // of walked values, and of what boundaries took and returned
  std::unordered_map<const void*, Value> values_;
};

} // namespace gradc
