"""In which order the rules of a place of Dynamo's run, where it has those of several patches: ``ORDER``, with the reasons.

The first stands around the others: its part before theirs, what it does afterwards after theirs. Where no reason is given, the
rules are about different things; the order then says which reason is counted where two would end the graph.
"""

from __future__ import annotations

import dis
from typing import Any

from torch._dynamo import convert_frame, eval_frame, guards, output_graph, side_effects, symbolic_convert, utils
from torch._dynamo.variables import SkipFunctionVariable, builder, builtin, functions, lists, tensor, torch, user_defined

from gradc.torch_private.dynamo_names import ANY_SET, FUNCTIONS, GETATTR, LIST_METHODS, LOADS_ATTRIBUTES
from gradc.torch_private.patches import Place

Row = tuple[tuple[tuple[Any, Any], ...], dict[str, str]]

_ROWS: tuple[Row, ...] = (
    (
        ((convert_frame.CatchErrorsWrapper, "__call__"),),
        {
            "run_optimizers_eagerly": "It asks least, and answers most often.",
            "compile_within_budgets": "What was refused is refused in 2 us, before anybody looks at the frame.",
            "tell_skipped_frames": "It sees every error of the others.",
            "ask_before_backward": "",
            "clear_gradients_natively": "",
        },
    ),
    (((convert_frame.CatchErrorsWrapper, "_handle_skip"),), {"tell_skipped_frames": "", "note_what_others_give_up": ""}),
    (
        ((convert_frame.ConvertFrame, "__call__"),),
        {
            "run_optimizers_natively": "A native step is not left to eager.",
            "run_optimizers_eagerly": "",
            "run_eagerly_where_dynamo_fails": "",
            "leave_the_process_as_it_is": "",
            "leave_kernels_alone": "",
        },
    ),
    (
        ((convert_frame.ConvertFrameAssert, "__call__"),),
        {
            "tell_skipped_frames": "It sees every error of the others.",
            "compile_under_our_settings": "The others are under gradc's settings.",
            "run_eagerly_where_dynamo_fails": "",
            "answer_as_builtin_types_do": "",
        },
    ),
    (
        ((eval_frame._TorchDynamoContext, "__init__"),),
        {"find_backends_at_once": "", "leave_the_process_as_it_is": ""},
    ),
    (
        ((guards.CheckFunctionManager, "compile_check_fn"),),
        {"guard_objects_at_once": "The tree of guards is cut when it is whole.", "keep_guards_that_may_be_asked": ""},
    ),
    (
        ((output_graph.OutputGraph, "init_ambient_guards"),),
        {"guard_class_attributes": "", "guard_what_is_told_apart": "Its guards are added first, and so asked first."},
    ),
    (
        ((output_graph.OutputGraph, "compile_subgraph"),),
        {
            "tell_graph_breaks": "Its call comes after the bytecode of the others.",
            "leave_broken_autocast_blocks_to_python": "It gives up the function before a loss is joined.",
            "join_losses": "The loss is marked before the graph is compiled.",
            "clear_behind_graphs": "",
            "set_context_variables_for_the_graph": "",
        },
    ),
    (
        ((side_effects.SideEffects, "mutation"),),
        {
            "write_into_namespaces_by_one_name": "",
            "see_dictionaries_through_their_views": "",
            "guard_what_is_told_apart": "",
            "guard_order_of_written_dictionaries": "",
            "keep_the_order_of_sets": "",
            "answer_as_builtin_types_do": "",
        },
    ),
    (
        ((side_effects.SideEffects, "store_attr"),),
        {
            "write_into_namespaces_by_one_name": "It looks at the name that the program wrote by.",
            "write_into_modules_by_all_names": "It hands on the name that was written by first.",
            "write_into_classes_eagerly": "",
            "set_process_state_eagerly": "",
            "guard_what_is_told_apart": "",
        },
    ),
    (
        ((side_effects.SideEffects, "track_mutable"),),
        {"write_into_namespaces_by_one_name": "", "guard_what_is_told_apart": ""},
    ),
    (
        ((symbolic_convert.InliningInstructionTranslator, "get_globals_source_and_value"),),
        {
            "find_modules_that_have_the_name": "Globals of no registered module have a source of gradc's.",
            "guard_the_environment": "",
        },
    ),
    (
        ((symbolic_convert.InstructionTranslator, "run"),),
        {"leave_labels_to_profilers": "", "leave_calls_to_function_modes": ""},
    ),
    (
        ((symbolic_convert.InstructionTranslatorBase.dispatch_table, dis.opmap["IMPORT_NAME"]),),
        {
            "find_modules_that_have_the_name": "It guards the name where the variable is the one that the other found.",
            "write_into_modules_by_all_names": "",
        },
    ),
    (
        ((symbolic_convert.InstructionTranslatorBase.dispatch_table, dis.opmap["UNARY_NOT"]),),
        {"resume_behind_operators": "It goes on behind whatever ends the graph.", "ask_values_of_arguments": ""},
    ),
    (
        ((utils, "run_node"),),
        {"break_graph_where_inference_tensors_are_saved": "", "break_graph_where_arguments_are_written": ""},
    ),
    (
        ((builder, "get_fake_value"),),
        {"warn_at_each_call": "It may run the call twice, with what the other does.", "pad_without_history": ""},
    ),
    (
        ((builder, "wrap_to_fake_tensor_and_record"),),
        {"break_graph_where_values_are_read": "", "break_graph_where_inference_tensors_are_saved": ""},
    ),
    (
        ((builder.VariableBuilder, "_wrap"),),
        {
            "look_through_compiled_modules": "",
            "ask_for_attributes_as_python_does": "",
            "leave_growing_lists_to_python": "",
            "leave_generators_to_python": "",
            "leave_closed": "",
        },
    ),
    (
        ((builtin.BuiltinVariable, "call_function"),),
        {
            "take_numpy_arguments": "The others see tensors in place of arrays.",
            "guard_where_functions_raise": "What may raise inside of a try is not calculated.",
            "raise_as_python_does": "",
            "sort_by_what_decides": "What is left to Python is compared there.",
            "keep_the_order_of_sets": "",
            "take_changing_floats": "",
            "give_no_notimplemented": "It looks at what Dynamo gives.",
        },
    ),
    (
        ((builtin.GetAttrBuiltinVariable, "_call_getattr"), *LOADS_ATTRIBUTES),
        {
            "ask_for_attributes_as_python_does": "It carries an end of the graph past Dynamo.",
            "guard_what_is_missing": "It sees what the next one does not find.",
            "raise_as_python_does": "",
        },
    ),
    (
        ((builtin.SetAttrBuiltinVariable, "_call_setattr"),),
        {"read_from_the_tensor": "", "make_leaves_in_graphs": "", "clear_behind_graphs": ""},
    ),
    (
        ((functions.UserFunctionVariable, "bind_args"),),
        {
            "warn_at_each_call": "It leaves to eager what the others could not bind.",
            "guard_code_of_functions": "",
            "ask_for_attributes_as_python_does": "",
        },
    ),
    (
        tuple((kind, "call_function") for kind in FUNCTIONS),
        {
            "run_optimizers_eagerly": "",
            "trace_grad_scalers": "",
            "keep_what_gradc_compiled": "",
            "copy_objects_as_python_does": "",
            "keep_what_properties_cache": "",
        },
    ),
    (
        ((LIST_METHODS, "call_method"),),
        {"guard_the_order_of_keys": "", "keep_the_order_of_sets": ""},
    ),
    (
        ((SkipFunctionVariable, "call_function"),),
        {
            "run_optimizers_eagerly": "",
            "check_values_of_distributions": "",
            "answer_as_in_eager": "",
            "copy_objects_as_python_does": "",
        },
    ),
    (
        ((tensor.TensorVariable, "call_method"),),
        {"take_numpy_arguments": "", "take_numbers_in_tensors": ""},
    ),
    (
        ((lists.ListVariable, "call_method"),),
        {"sort_by_what_decides": "", "iterate_over_the_list_itself": "It looks at what Dynamo gives."},
    ),
    (
        ((ANY_SET, "call_method"),),
        {"answer_as_containers_do": "A key without a hash is looked for nowhere.", "keep_the_order_of_sets": ""},
    ),
    (
        ((tensor.TensorVariable, GETATTR),),
        {"read_from_the_tensor": "", "keep_views_in_graphs": ""},
    ),
    (
        ((torch.TorchInGraphFunctionVariable, "call_function"),),
        {
            "make_tensors_of_deques": "The others see a list in place of a deque.",
            "leave_closed": "Nobody looks into a closed tensor.",
            "guard_where_functions_raise": "What may raise inside of a try is not calculated.",
            "guard_process_groups": "",
            "take_changing_floats": "",
            "make_leaves_in_graphs": "",
            "calculate_with_integers_in_python": "Of what gradc itself does not calculate.",
            "break_graph_at_opaque_functions": "",
            "break_graph_at_methods_of_what_is_no_tensor": "",
        },
    ),
    (
        ((user_defined.UserDefinedClassVariable, "call_function"),),
        {"make_objects_as_python_does": "", "keep_effects_of_python": ""},
    ),
)

ORDER: dict[str, dict[str, str]] = {str(Place(*place)): patches for places, patches in _ROWS for place in places}


def in_order(place: Place, patches: set[str]) -> list[str]:
    """The patches, as stated; those of which nothing is stated come last, by name."""
    stated = [*ORDER.get(str(place), ())]
    return [*(patch for patch in stated if patch in patches), *sorted(patches.difference(stated))]


def is_stated(place: Place, patches: set[str]) -> bool:
    return len(patches) < 2 or patches == set(ORDER.get(str(place), ()))
