// Autograd nodes run as torch's engine runs them, hooks included, but from outside of the engine.
#pragma once

#include "walk/csrc/walk.h"

#include <functional>
#include <vector>

namespace gradc {

// Runs one node as the engine does, hooks included, and validates what it returns. `is_owned`: of each input, whether nobody
// else is taken to hold it; empty: as it is.
variable_list run_node(Node& node, variable_list inputs, bool keep_graph, std::vector<bool> is_owned = {});

// The node that runs in this thread; in a captured pass, which is one node of torch's engine, the one that run_node runs.
c10::intrusive_ptr<Node> current_node();

// Calls what hooks on the node's inputs make of them: all that the engine does with a node that is asked for and does not run.
variable_list call_hooks_alone(Node& node, variable_list inputs);

// Runs `function` as the body of a backward pass of torch's engine: with a graph task, final callbacks and its errors.
variable_list inside_engine(Walk& walk, const std::function<variable_list()>& function);

} // namespace gradc
