// What threads count of nodes. Each counts those that it makes, and the engine runs those with higher numbers first.
#pragma once

#include <c10/core/Device.h>
#include <pybind11/pybind11.h>
#include <torch/csrc/autograd/function.h>

#include <cstdint>
#include <vector>

namespace gradc {

using NodesOfPass = std::vector<c10::intrusive_ptr<torch::autograd::Node>>; // which live on where edges to them go

// All nodes that a pass from `roots` may come to, each once; without the leaves'.
NodesOfPass nodes_from(const torch::autograd::variable_list& roots);

// Calls `function` in a thread of its own, in the state of this one: the nodes that it makes leave this thread's count alone.
void call_elsewhere(const pybind11::function& function);

// All nodes that a pass from `roots` may come to get numbers so much higher, but for those of leaves, which have none.
void move_on(const torch::autograd::variable_list& roots, uint64_t number);

// Has this thread's next node get `number`, if it would get a lower one.
void count_nodes_to(uint64_t number);

// Has the engine's thread of a device count so many more nodes. The number of its next one. No kernel runs there.
uint64_t count_in_thread_of(c10::Device device, uint64_t number);

// `own` is told the number of each pass by which a thread is asked, behind it. To be called before.
void tell_of_counting_passes(pybind11::function own);

// Whether all nodes that the engine makes in the thread of a device from now on get `number` or a higher one. To ask the thread takes
// as long as a small backward, so it is only asked where what it last said does not tell.
bool device_counts_from(c10::Device device, uint64_t number);

// Has the thread of a device count so many more nodes, which a call has made in eager: at once while it is little ahead of this one, and
// later where that can make no difference.
void owe_nodes(c10::Device device, uint64_t number);

} // namespace gradc
