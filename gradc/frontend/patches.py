"""What gradc changes in torch, and when: at the first thing that gradc compiles, and for what gradc compiles only.

patches: () -> all of them, each with its reason
"""

from __future__ import annotations

import contextlib
import functools
import pathlib
import pkgutil
from collections.abc import Callable, Iterator
from typing import Any

from gradc import native, optim
from gradc.backward.inner_gradients import reason_for_eager
from gradc.compiled_autograd.entry import INTERCEPT, PASSES
from gradc.compiled_autograd.fast_backward_entry import AT_ONCE, run_segments, straight_loss
from gradc.frontend.compiled_module import is_forward, module_of
from gradc.frontend.floats import takes_floats
from gradc.frontend.leaves import begins_with_leaves
from gradc.garbage import set_aside
from gradc.journal import LOG_NAMES, counter_of, fallback
from gradc.nodes.thread_counts import counted_elsewhere, in_step
from gradc.options import DEFAULTS
from gradc.torch_private import dynamo_patches
from gradc.torch_private.dynamo import Uncompiled, set_eval_frame
from gradc.torch_private.dynamo_patches import (
    backward_calls,
    budgets,
    callbacks,
    calls,
    changing_floats,
    class_attributes,
    compiled_modules,
    dict_version_guard,
    failures,
    inner_gradients,
    leaves,
    loss_to_backward,
    native_optimizers,
    native_zero_grad,
    optimizers,
    settings,
    step_epilogue,
    uncompiled,
)
from gradc.torch_private.optimizers import Quick, is_zero_grad, quick_of, without_hooks
from gradc.torch_private.ours import budget_of, options_of
from gradc.torch_private.patches import Patches
from gradc.torch_private.quiet import leave_out_handled_errors, quiet
from gradc.torch_private.replaced_kernels import note_replaced_kernels


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
            PASSES,
            note_replaced_kernels(native.tell_of_replaced_kernels),
            *dynamo_patches.patches(),
            loss_to_backward.join_losses(straight_loss),
            changing_floats.take_changing_floats(takes_floats),
            step_epilogue.end_in_the_same_frame(_quick_method),
            leaves.return_what_leaves_lead_to(begins_with_leaves),
            failures.run_eagerly_where_dynamo_fails(functools.partial(fallback, "tracing failed")),
            optimizers.run_optimizers_eagerly(_note_optimizer, _quick_method),
            inner_gradients.trace_inner_gradients(reason_for_eager, counted_elsewhere),
            native_optimizers.run_optimizers_natively(_native_step),
            callbacks.find_backends_at_once(native.callback_to),
            native_zero_grad.clear_gradients_natively(optim.native_zero_grad, _quick_zero_grad),
            backward_calls.ask_before_backward(run_segments),
            class_attributes.guard_class_attributes(native.same_definitions),
            calls.guard_module_hooks(native.no_hooks, native.ask_for_hooks),
            dict_version_guard.guard_objects_at_once(native.same_objects),
            compiled_modules.look_through_compiled_modules(module_of, is_forward),
            settings.compile_under_our_settings(_aside_and_quiet),
            calls.skip_frames_of(_rooms()),
            uncompiled.tell_graph_breaks(_counter_of),
            uncompiled.tell_skipped_frames(_counter_of),
            budgets.compile_within_budgets(budget_of),
            leave_out_handled_errors(),
        )
    )


@contextlib.contextmanager
def _aside_and_quiet(frame: Any) -> Iterator[None]:
    with in_step(frame), set_aside(), quiet():
        yield


def _note_optimizer(name: str, compiler: Any) -> None:
    fallback("optimizer", name, fullgraph=(options_of(compiler) or DEFAULTS).fullgraph)


@functools.cache
def _native_step(step: Any, compiler: Any) -> Any:
    note = functools.partial(_note_optimizer, compiler=compiler)
    return optim.native_step_of(step, note, native_optimizers.compiled_as_the_caller)


@functools.cache
def _quick_zero_grad() -> Quick | None:
    return optim.quick_zero_grad(set_eval_frame)


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
    optimizers.NATIVE_STEP,
    optimizers.ZERO_GRAD_FIRST,
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
