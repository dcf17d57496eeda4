"""What gradc changes in Dynamo, each as a patch: so that what it compiles is the user's program, call for call.

    (is_ours, ...) -> Patch          is_ours: a backend of torch.compile's -> True if it is gradc

What other backends compile is as without gradc: each replacement asks ``is_ours`` first, or whether Dynamo compiles for gradc.
"""

from gradc.torch_private.dynamo_patches.abstract_classes import guard_registered_classes
from gradc.torch_private.dynamo_patches.attributes import ask_for_attributes_as_python_does
from gradc.torch_private.dynamo_patches.autocast_blocks import leave_broken_autocast_blocks_to_python
from gradc.torch_private.dynamo_patches.backward_calls import ask_before_backward
from gradc.torch_private.dynamo_patches.budgets import compile_within_budgets
from gradc.torch_private.dynamo_patches.builtin_types import answer_as_builtin_types_do
from gradc.torch_private.dynamo_patches.cached_functions import answer_from_caches
from gradc.torch_private.dynamo_patches.calculated_floats import leave_calculated_floats_to_python
from gradc.torch_private.dynamo_patches.callbacks import find_backends_at_once
from gradc.torch_private.dynamo_patches.calls import call_natively, guard_module_hooks, skip_frames_of
from gradc.torch_private.dynamo_patches.changing_floats import take_changing_floats
from gradc.torch_private.dynamo_patches.changing_integers import calculate_with_integers_in_python, take_changing_integers
from gradc.torch_private.dynamo_patches.choices import let_python_choose
from gradc.torch_private.dynamo_patches.class_attributes import guard_class_attributes
from gradc.torch_private.dynamo_patches.cleared_last import clear_behind_graphs
from gradc.torch_private.dynamo_patches.compiled_modules import look_through_compiled_modules
from gradc.torch_private.dynamo_patches.compiling_flags import answer_as_in_eager
from gradc.torch_private.dynamo_patches.constructors import make_objects_as_python_does
from gradc.torch_private.dynamo_patches.copies import copy_objects_as_python_does
from gradc.torch_private.dynamo_patches.counts import PICKLING_WARNS, read_counts_without_warnings
from gradc.torch_private.dynamo_patches.delegation import give_what_generators_return
from gradc.torch_private.dynamo_patches.deques import make_tensors_of_deques
from gradc.torch_private.dynamo_patches.dictionary_views import see_dictionaries_through_their_views
from gradc.torch_private.dynamo_patches.distributions import check_values_of_distributions
from gradc.torch_private.dynamo_patches.dual_tensors import take_dual_tensors
from gradc.torch_private.dynamo_patches.dying_guards import keep_guards_that_may_be_asked
from gradc.torch_private.dynamo_patches.empty_dictionaries import guard_attributes_of_empty_dictionaries
from gradc.torch_private.dynamo_patches.empty_graphs import keep_functions_compiled
from gradc.torch_private.dynamo_patches.environment import guard_the_environment
from gradc.torch_private.dynamo_patches.failures import run_eagerly_where_dynamo_fails
from gradc.torch_private.dynamo_patches.function_contexts import keep_marks_of_functions
from gradc.torch_private.dynamo_patches.generators import leave_generators_to_python
from gradc.torch_private.dynamo_patches.given_up import ask_again, note_what_others_give_up
from gradc.torch_private.dynamo_patches.global_tensors import see_global_tensors
from gradc.torch_private.dynamo_patches.graph_breaks import (
    break_graph_at_methods_of_what_is_no_tensor,
    break_graph_at_opaque_functions,
    break_graph_where_eager_is_needed,
    break_graph_where_values_are_read,
)
from gradc.torch_private.dynamo_patches.grouped_tensors import group_tensors_in_eagers_order
from gradc.torch_private.dynamo_patches.growing_lists import leave_growing_lists_to_python
from gradc.torch_private.dynamo_patches.identity import tell_tensors_apart
from gradc.torch_private.dynamo_patches.inference_tensors import break_graph_where_inference_tensors_are_saved
from gradc.torch_private.dynamo_patches.inner_gradients import trace_inner_gradients
from gradc.torch_private.dynamo_patches.joined_sequences import give_no_notimplemented
from gradc.torch_private.dynamo_patches.kernels import leave_kernels_alone
from gradc.torch_private.dynamo_patches.key_order import guard_the_order_of_keys
from gradc.torch_private.dynamo_patches.last_calls import end_in_the_same_frame
from gradc.torch_private.dynamo_patches.leaves import (
    FACTORIES,
    make_leaves_in_graphs,
    return_what_leaves_lead_to,
    unmake_leaves_eagerly,
)
from gradc.torch_private.dynamo_patches.left_for_now import leave_calls_to_function_modes, leave_labels_to_profilers
from gradc.torch_private.dynamo_patches.marked_regions import trace_through_marked_regions
from gradc.torch_private.dynamo_patches.missing import guard_what_is_missing
from gradc.torch_private.dynamo_patches.modules_by_name import find_modules_that_have_the_name
from gradc.torch_private.dynamo_patches.native_optimizers import compiled_as_the_caller, run_optimizers_natively
from gradc.torch_private.dynamo_patches.native_zero_grad import clear_gradients_natively
from gradc.torch_private.dynamo_patches.nested import keep_what_gradc_compiled
from gradc.torch_private.dynamo_patches.numbers_in_tensors import take_numbers_in_tensors
from gradc.torch_private.dynamo_patches.numpy_arguments import take_numpy_arguments
from gradc.torch_private.dynamo_patches.opaque import leave_closed
from gradc.torch_private.dynamo_patches.operators import resume_behind_operators
from gradc.torch_private.dynamo_patches.optimizers import NATIVE_STEP, ZERO_GRAD_FIRST, run_optimizers_eagerly
from gradc.torch_private.dynamo_patches.padding import pad_without_history
from gradc.torch_private.dynamo_patches.parameter_groups import read_parameter_groups_as_they_are
from gradc.torch_private.dynamo_patches.partial_functions import guard_where_functions_raise
from gradc.torch_private.dynamo_patches.process_effects import leave_the_process_as_it_is
from gradc.torch_private.dynamo_patches.process_groups import guard_process_groups
from gradc.torch_private.dynamo_patches.process_state import set_process_state_eagerly
from gradc.torch_private.dynamo_patches.python_effects import keep_effects_of_python, warn_of_nothing
from gradc.torch_private.dynamo_patches.random_numbers import take_drawn_numbers
from gradc.torch_private.dynamo_patches.recurrences import trace_short_recurrences
from gradc.torch_private.dynamo_patches.replaced_code import guard_code_of_functions
from gradc.torch_private.dynamo_patches.same_objects import guard_objects_at_once
from gradc.torch_private.dynamo_patches.sets import keep_the_order_of_sets
from gradc.torch_private.dynamo_patches.settings import compile_under_our_settings
from gradc.torch_private.dynamo_patches.straight_losses import join_losses, joint_of
from gradc.torch_private.dynamo_patches.streams import leave_streams_to_python
from gradc.torch_private.dynamo_patches.subclasses import take_data_of_subclasses
from gradc.torch_private.dynamo_patches.sums import add_up_as_python_does
from gradc.torch_private.dynamo_patches.tensor_state import read_from_the_tensor
from gradc.torch_private.dynamo_patches.told_apart import guard_what_is_told_apart
from gradc.torch_private.dynamo_patches.uncompiled import tell_graph_breaks, tell_skipped_frames
from gradc.torch_private.dynamo_patches.unread_elements import keep_unread_elements
from gradc.torch_private.dynamo_patches.unrolled_loops import go_on_in_short_loops
from gradc.torch_private.dynamo_patches.unused_work import leave_out_unused_guards, leave_out_unused_work
from gradc.torch_private.dynamo_patches.warned_calls import warn_at_each_call
from gradc.torch_private.dynamo_patches.whole_calls import keep_ops_whole, keep_views_in_graphs, unpack_whole_tensors
from gradc.torch_private.dynamo_patches.written_arguments import break_graph_where_arguments_are_written
from gradc.torch_private.dynamo_patches.written_classes import write_into_classes_eagerly
from gradc.torch_private.dynamo_patches.written_dictionaries import guard_order_of_written_dictionaries
from gradc.torch_private.dynamo_patches.written_modules import write_into_modules_by_all_names
from gradc.torch_private.dynamo_patches.written_namespaces import write_into_namespaces_by_one_name

__all__ = [
    "FACTORIES",
    "NATIVE_STEP",
    "PICKLING_WARNS",
    "ZERO_GRAD_FIRST",
    "add_up_as_python_does",
    "answer_as_builtin_types_do",
    "answer_as_in_eager",
    "answer_from_caches",
    "ask_again",
    "ask_before_backward",
    "ask_for_attributes_as_python_does",
    "break_graph_at_methods_of_what_is_no_tensor",
    "break_graph_at_opaque_functions",
    "break_graph_where_arguments_are_written",
    "break_graph_where_eager_is_needed",
    "break_graph_where_inference_tensors_are_saved",
    "break_graph_where_values_are_read",
    "calculate_with_integers_in_python",
    "call_natively",
    "check_values_of_distributions",
    "clear_behind_graphs",
    "clear_gradients_natively",
    "compile_under_our_settings",
    "compile_within_budgets",
    "compiled_as_the_caller",
    "copy_objects_as_python_does",
    "end_in_the_same_frame",
    "find_backends_at_once",
    "find_modules_that_have_the_name",
    "give_no_notimplemented",
    "give_what_generators_return",
    "go_on_in_short_loops",
    "group_tensors_in_eagers_order",
    "guard_attributes_of_empty_dictionaries",
    "guard_class_attributes",
    "guard_code_of_functions",
    "guard_module_hooks",
    "guard_objects_at_once",
    "guard_order_of_written_dictionaries",
    "guard_process_groups",
    "guard_registered_classes",
    "guard_the_environment",
    "guard_the_order_of_keys",
    "guard_what_is_missing",
    "guard_what_is_told_apart",
    "guard_where_functions_raise",
    "join_losses",
    "joint_of",
    "keep_effects_of_python",
    "keep_functions_compiled",
    "keep_guards_that_may_be_asked",
    "keep_marks_of_functions",
    "keep_ops_whole",
    "keep_the_order_of_sets",
    "keep_unread_elements",
    "keep_views_in_graphs",
    "keep_what_gradc_compiled",
    "leave_broken_autocast_blocks_to_python",
    "leave_calculated_floats_to_python",
    "leave_calls_to_function_modes",
    "leave_closed",
    "leave_generators_to_python",
    "leave_growing_lists_to_python",
    "leave_kernels_alone",
    "leave_labels_to_profilers",
    "leave_out_unused_guards",
    "leave_out_unused_work",
    "leave_streams_to_python",
    "leave_the_process_as_it_is",
    "let_python_choose",
    "look_through_compiled_modules",
    "make_leaves_in_graphs",
    "make_objects_as_python_does",
    "make_tensors_of_deques",
    "note_what_others_give_up",
    "pad_without_history",
    "read_counts_without_warnings",
    "read_from_the_tensor",
    "read_parameter_groups_as_they_are",
    "resume_behind_operators",
    "return_what_leaves_lead_to",
    "run_eagerly_where_dynamo_fails",
    "run_optimizers_eagerly",
    "run_optimizers_natively",
    "see_dictionaries_through_their_views",
    "see_global_tensors",
    "set_process_state_eagerly",
    "skip_frames_of",
    "take_changing_floats",
    "take_changing_integers",
    "take_data_of_subclasses",
    "take_drawn_numbers",
    "take_dual_tensors",
    "take_numbers_in_tensors",
    "take_numpy_arguments",
    "tell_graph_breaks",
    "tell_skipped_frames",
    "tell_tensors_apart",
    "trace_inner_gradients",
    "trace_short_recurrences",
    "trace_through_marked_regions",
    "unmake_leaves_eagerly",
    "unpack_whole_tensors",
    "warn_at_each_call",
    "warn_of_nothing",
    "write_into_classes_eagerly",
    "write_into_modules_by_all_names",
    "write_into_namespaces_by_one_name",
]
