"""What gradc changes in torch, and when: at the first thing that gradc compiles, and for what gradc compiles only.

patches: () -> all of them, each with its reason          options_of: a backend of torch.compile's -> CompileOptions | None
"""

from __future__ import annotations

import contextlib
import functools
import pathlib
import pkgutil
from collections.abc import Callable, Iterator
from typing import Any

from gradc import native
from gradc.backward.inner_gradients import reason_for_eager
from gradc.compiled_autograd.at_once import AT_ONCE, run_segments, straight_loss
from gradc.compiled_autograd.entry import INTERCEPT
from gradc.frontend.compiled_module import is_forward, module_of
from gradc.frontend.floats import takes_floats
from gradc.frontend.leaves import begins_with_leaves
from gradc.garbage import set_aside
from gradc.journal import LOG_NAMES, counter_of, fallback
from gradc.optim import native_step_of, native_zero_grad, quick_zero_grad
from gradc.options import DEFAULTS, CompileOptions
from gradc.policy.budget import Budget
from gradc.torch_private import dynamo_patches as dynamo
from gradc.torch_private.backward_passes import tell_of_passes_as_in_eager
from gradc.torch_private.dynamo import Uncompiled, set_eval_frame
from gradc.torch_private.optimizers import Quick, is_zero_grad, quick_of, without_hooks
from gradc.torch_private.patches import Patches
from gradc.torch_private.quiet import leave_out_handled_errors, quiet
from gradc.torch_private.replaced_kernels import note_replaced_kernels

_WRAPPERS = ("_torchdynamo_orig_backend", "__wrapped__", "compiler_fn", "backend_compile_fn", "__self__")


@functools.cache
def patches() -> Patches:
    """Everything that gradc changes in torch, in the order in which it is applied.

    Each patch has a ``name``, a ``reason``, the ``versions`` of torch that it was written for, ``is_applied``, ``apply()`` and
    ``undo()``; so have all together. They are applied when gradc compiles the first thing: ``import gradc`` only adds names of
    logs. ``undo`` puts back the very objects that were there, until something is compiled again.

    Returns:
        A tuple of patches, which prints each with its reason and what it changes.

    >>> {patch.name: patch.reason for patch in patches()}["keep_ops_whole"]
    'Dynamo takes addcdiv, addcmul_ and the like apart, and rounds twice; it lets full take a tensor that eager refuses.'
    """
    return Patches.for_this_torch(
        (
            LOG_NAMES,
            INTERCEPT,
            AT_ONCE,
            tell_of_passes_as_in_eager(native.current_autograd_node),
            note_replaced_kernels(native.tell_of_replaced_kernels),
            dynamo.answer_as_builtin_types_do(is_ours),
            dynamo.answer_as_in_eager(is_ours),
            dynamo.break_graph_at_methods_of_what_is_no_tensor(is_ours),
            dynamo.answer_from_caches(is_ours),
            dynamo.break_graph_at_opaque_functions(is_ours),
            dynamo.break_graph_where_arguments_are_written(is_ours),
            dynamo.break_graph_where_eager_is_needed(is_ours),
            dynamo.break_graph_where_inference_tensors_are_saved(is_ours),
            dynamo.break_graph_where_values_are_read(is_ours),
            dynamo.calculate_with_integers_in_python(is_ours),
            dynamo.check_values_of_distributions(is_ours),
            dynamo.clear_behind_graphs(is_ours),
            dynamo.join_losses(is_ours, straight_loss),
            dynamo.keep_effects_of_python(is_ours),
            dynamo.keep_functions_compiled(is_ours),
            dynamo.keep_guards_that_may_be_asked(),
            dynamo.keep_marks_of_functions(is_ours),
            dynamo.keep_ops_whole(is_ours),
            dynamo.keep_the_order_of_sets(is_ours),
            dynamo.keep_unread_elements(is_ours),
            dynamo.make_leaves_in_graphs(is_ours),
            dynamo.make_objects_as_python_does(is_ours),
            dynamo.copy_objects_as_python_does(is_ours),
            dynamo.give_what_generators_return(is_ours),
            dynamo.add_up_as_python_does(is_ours),
            dynamo.give_no_notimplemented(is_ours),
            dynamo.keep_views_in_graphs(is_ours),
            dynamo.keep_what_gradc_compiled(is_ours),
            dynamo.leave_broken_autocast_blocks_to_python(is_ours),
            dynamo.take_changing_floats(is_ours, takes_floats),
            dynamo.take_changing_integers(is_ours),
            dynamo.take_drawn_numbers(is_ours),
            dynamo.take_dual_tensors(is_ours),
            dynamo.go_on_in_short_loops(is_ours),
            dynamo.group_tensors_in_eagers_order(is_ours),
            dynamo.guard_attributes_of_empty_dictionaries(),
            dynamo.guard_order_of_written_dictionaries(is_ours),
            dynamo.guard_process_groups(is_ours),
            dynamo.guard_the_order_of_keys(),
            dynamo.guard_what_is_missing(),
            dynamo.guard_what_is_told_apart(),
            dynamo.guard_registered_classes(is_ours),
            dynamo.guard_the_environment(),
            dynamo.guard_where_functions_raise(is_ours),
            dynamo.take_data_of_subclasses(is_ours),
            dynamo.leave_calculated_floats_to_python(),
            dynamo.leave_calls_to_function_modes(is_ours),
            dynamo.leave_closed(is_ours),
            dynamo.take_numbers_in_tensors(is_ours),
            dynamo.take_numpy_arguments(is_ours),
            dynamo.let_python_choose(is_ours),
            dynamo.leave_generators_to_python(is_ours),
            dynamo.leave_growing_lists_to_python(is_ours),
            dynamo.leave_kernels_alone(is_ours),
            dynamo.leave_labels_to_profilers(is_ours),
            dynamo.leave_streams_to_python(is_ours),
            dynamo.make_tensors_of_deques(is_ours),
            dynamo.note_what_others_give_up(is_ours),
            dynamo.pad_without_history(is_ours),
            *((dynamo.read_counts_without_warnings(),) if dynamo.PICKLING_WARNS else ()),
            dynamo.read_from_the_tensor(is_ours),
            dynamo.read_parameter_groups_as_they_are(is_ours),
            dynamo.leave_the_process_as_it_is(is_ours),
            dynamo.resume_behind_operators(is_ours),
            dynamo.end_in_the_same_frame(is_ours, _quick_method),
            dynamo.return_what_leaves_lead_to(is_ours, begins_with_leaves),
            dynamo.run_eagerly_where_dynamo_fails(is_ours, functools.partial(fallback, "tracing failed")),
            dynamo.run_optimizers_eagerly(is_ours, _note_optimizer, _quick_method),
            dynamo.see_global_tensors(),
            dynamo.see_dictionaries_through_their_views(),
            dynamo.ask_for_attributes_as_python_does(),
            dynamo.set_process_state_eagerly(is_ours),
            dynamo.write_into_classes_eagerly(),
            dynamo.write_into_modules_by_all_names(),
            dynamo.write_into_namespaces_by_one_name(),
            dynamo.trace_inner_gradients(is_ours, reason_for_eager),
            dynamo.trace_short_recurrences(is_ours),
            dynamo.trace_through_marked_regions(is_ours),
            dynamo.run_optimizers_natively(is_ours, _native_step),
            dynamo.find_backends_at_once(is_ours, native.callback_to),
            dynamo.find_modules_that_have_the_name(),
            dynamo.clear_gradients_natively(is_ours, native_zero_grad, _quick_zero_grad),
            dynamo.ask_before_backward(is_ours, run_segments),
            dynamo.unmake_leaves_eagerly(is_ours),
            dynamo.unpack_whole_tensors(is_ours),
            dynamo.call_natively(is_ours),
            dynamo.guard_class_attributes(native.same_definitions),
            dynamo.guard_code_of_functions(),
            dynamo.guard_module_hooks(native.no_hooks, native.ask_for_hooks),
            dynamo.guard_objects_at_once(native.same_objects),
            dynamo.look_through_compiled_modules(is_ours, module_of, is_forward),
            dynamo.compile_under_our_settings(is_ours, _aside_and_quiet),
            leave_out_handled_errors(),
            dynamo.tell_tensors_apart(is_ours),
            dynamo.warn_at_each_call(is_ours),
            dynamo.warn_of_nothing(),
            dynamo.leave_out_unused_work(),
            dynamo.leave_out_unused_guards(),
            dynamo.skip_frames_of(_rooms()),
            dynamo.tell_graph_breaks(is_ours, _counter_of),
            dynamo.tell_skipped_frames(is_ours, _counter_of),
            dynamo.compile_within_budgets(budget_of),
        )
    )


def options_of(compiler: Any) -> CompileOptions | None:
    """The options of a backend that is gradc, under whatever wrappers of torch's; None for another backend."""
    found = _under_wrappers(compiler)
    return found.compile_options if found is not None else None


def budget_of(compiler: Any) -> Budget | None:
    """The time that a backend has, if it is gradc."""
    return getattr(_under_wrappers(compiler), "budget", None)


def _under_wrappers(compiler: Any) -> Any:
    while compiler is not None and not isinstance(getattr(compiler, "compile_options", None), CompileOptions):
        compiler = next((getattr(compiler, name) for name in _WRAPPERS if hasattr(compiler, name)), None)
    return compiler


def is_ours(compiler: Any) -> bool:
    return options_of(compiler) is not None


@contextlib.contextmanager
def _aside_and_quiet() -> Iterator[None]:
    with set_aside(), quiet():
        yield


def _note_optimizer(name: str, compiler: Any) -> None:
    fallback("optimizer", name, fullgraph=(options_of(compiler) or DEFAULTS).fullgraph)


@functools.cache
def _native_step(step: Any, compiler: Any) -> Any:
    note = functools.partial(_note_optimizer, compiler=compiler)
    return native_step_of(step, note, dynamo.compiled_as_the_caller)


@functools.cache
def _quick_zero_grad() -> Quick | None:
    return quick_zero_grad(set_eval_frame)


def _quick_method(name: str, function: Any, otherwise: Callable[[Any], Any], compiler: Any) -> Any:
    """What calls an optimizer's method ``name`` without a frame, where it is the class's ``function``; None for others."""
    if name == "zero_grad":
        quick = _quick_zero_grad() if is_zero_grad(function) else None
    else:
        quick = quick_of(_native_step(without_hooks(function), compiler))
    return quick.method(name, function, otherwise) if quick else None


# A graph may end at a backward pass, which regions or compiled autograd run. Optimizers' steps are counted as fallbacks.
_NOTHING_LOST = (
    "Unsupported Tensor.backward() call",
    "autograd.grad ",
    "gradc: autograd.grad",
    "gradc: optimizer",
    dynamo.NATIVE_STEP,
    dynamo.ZERO_GRAD_FIRST,
)


def _counter_of(found: Uncompiled, compiler: Any) -> Callable[[], None] | None:
    """What counts ``found``, at each call that comes there; None where nothing is lost."""
    if found.is_break and found.kind.startswith(_NOTHING_LOST):
        return None
    return counter_of(found, fullgraph=(options_of(compiler) or DEFAULTS).fullgraph)


def _rooms() -> tuple[str, ...]:
    """The modules and packages of gradc that no user's code is in; the demo and the probes are compiled."""
    names = (module.name for module in pkgutil.iter_modules([str(pathlib.Path(__file__).parent.parent)]))
    return tuple(f"gradc.{name}" for name in names if name not in ("_C", "cli", "demo", "probes"))
