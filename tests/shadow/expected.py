"""The tests that fail under shadow mode, though nothing is wrong: what they look at is what it does. Each with the reason."""

from __future__ import annotations

_KEEPS = "what is verified lives, with its copies, until the backward that frees its graph, or the collector comes"
_WATCHES = "hooks watch the nodes: gradients are then not accumulated, added up or written over by the nodes themselves"
_TIMES = "what is verified is not timed"
_LOOKS = "looking at all that a call can come to has torch make a class that it makes when first asked for"

EXPECTED = {
    "tests/semantics/test_saved_tensors.py::test_inputs_not_kept_alive": _KEEPS,
    "tests/torch_private/test_backward_passes.py::test_what_a_node_keeps_dies_with_it_under_anomaly_mode": _KEEPS,
    "tests/nodes/test_shared_leaves.py::test_peak_memory_is_eagers": _KEEPS,
    "tests/nodes/test_accumulate.py::test_unwatched_leaves_do_not_go_through_the_engine": _WATCHES,
    "tests/nodes/test_key.py::test_gradients_of_one_leaf_that_are_added_up": _WATCHES,
    "tests/nodes/test_layouts_of_sums.py::test_second_order": _WATCHES,
    "tests/nodes/test_layouts_of_sums.py::test_a_hook_returns_it": _WATCHES,
    "tests/optim/test_native_step.py::test_inside_a_compiled_training_step": "the step that is run beside counts, too",
    "tests/replay/test_freed.py::test_gradients_of_shared_weights_are_added_up_as_without_capture": _WATCHES,
    "tests/tutorial/test_compiled_autograd.py::test_the_graph_of_a_compiled_forward_can_be_called": _WATCHES,
    "tests/tutorial/test_compiled_autograd.py::test_one_graph_though_the_forward_breaks": _WATCHES,
    "tests/tutorial/test_compiled_autograd.py::test_backward_hooks_are_captured": _WATCHES,
    "tests/frontend/test_faster.py::test_a_module_trains_as_in_eager_through_the_trial_and_behind_it": _TIMES,
    "tests/frontend/test_faster.py::test_the_backward_of_what_runs_eagerly_is_not_captured": _TIMES,
    "tests/frontend/test_faster.py::test_what_runs_compiled_again_has_its_backward_captured": _TIMES,
    "tests/frontend/test_faster.py::test_a_step_that_runs_backward_itself": _TIMES,
    "tests/frontend/test_faster.py::test_checkpoint_around_what_is_slower": _TIMES,
    "tests/frontend/test_faster.py::test_explain_says_what_was_chosen": _TIMES,
    "tests/frontend/test_faster.py::test_explain_times_a_step_where_asked": _TIMES,
    "tests/frontend/test_faster.py::test_a_function_passes_for_what_was_compiled_wherever_that_is_looked_at": _TIMES,
    "tests/torch_private/test_process_effects.py::test_only_what_a_patch_names_is_changed": _LOOKS,
}

_IS_INDUCTOR = "Inductor is not asked for eager's last bits"

# What differs from eager, as it is meant to: shadow mode tells it, and gives eager's result.
ON_PURPOSE = {
    "tests/frontend/test_failures.py::test_a_fault_of_gradc_s_own_is_told": "a fault of gradc's own",
    "tests/backends/test_inductor.py::test_batch_norm_and_dropout": _IS_INDUCTOR,
    "tests/backends/test_inductor.py::test_unused_outputs_give_none": _IS_INDUCTOR,
    "tests/backends/test_inductor.py::test_autocast_around_backward_is_obeyed": _IS_INDUCTOR,
}
