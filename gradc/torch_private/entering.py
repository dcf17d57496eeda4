"""What ``torch.compile`` returns for a function, taken apart: what it runs, by which callback, and when it would do otherwise.

taken_apart:         what torch.compile returned -> what to run, as ``_C.entered`` takes it; None for what has another form
is_anything_unusual: () -> True if something is in force for which torch's wrapper does otherwise than to run it
told_shortly:        an error of TOLD_SHORTLY -> it as torch's wrapper raises it
"""

from __future__ import annotations

import types
from typing import Any

import torch
from torch._C._functorch import get_dynamic_layer_stack_depth, pop_dynamic_layer_stack_and_undo_to_depth
from torch._dynamo import config, eval_frame
from torch._dynamo.eval_frame import OptimizeContext, set_eval_frame, set_eval_frame_isolate_recompiles_id
from torch._dynamo.exc import ShortenTraceback, UncapturedHigherOrderOpError, Unsupported, UserError
from torch.fx._symbolic_trace import is_fx_symbolic_tracing

from gradc.torch_private.dynamo import tracing_context

_NAME = "compile_wrapper"
_NESTED: Any = getattr(eval_frame, "_force_eager_nested_compile", None)  # since torch 2.14
_SWITCHES = (
    set_eval_frame, set_eval_frame_isolate_recompiles_id,
    get_dynamic_layer_stack_depth, pop_dynamic_layer_stack_and_undo_to_depth,
)  # fmt: skip
TOLD_SHORTLY = (Unsupported, UncapturedHigherOrderOpError, UserError, ShortenTraceback)


def taken_apart(compiled: Any) -> tuple[Any, ...] | None:
    """See the module's docstring."""
    if not isinstance(compiled, types.FunctionType) or compiled.__code__.co_name != _NAME:
        return None
    inside = dict(zip(compiled.__code__.co_freevars, (cell.cell_contents for cell in compiled.__closure__ or ()), strict=True))
    context, function, callback = inside.get("self"), inside.get("fn"), inside.get("callback")
    if not isinstance(context, OptimizeContext) or not callable(function) or not callable(callback):
        return None
    if context.fullgraph or context.export or context.error_on_graph_break is not None:
        return None
    return function, callback, context._isolate_recompiles_id, context.enter_exit_hooks, *_SWITCHES


def is_anything_unusual() -> bool:
    """See the module's docstring."""
    stance = eval_frame._stance
    return (
        stance.stance != "default"
        or stance.backend is not None
        or stance.skip_guard_eval_unsafe
        or tracing_context() is not None
        or torch.compiler.is_exporting()
        or is_fx_symbolic_tracing()
        or torch._C._is_tracing()
        or getattr(_NESTED, "depth", 0) > 0
    )


def told_shortly(error: BaseException) -> BaseException:
    """The error as torch's wrapper raises it: without what Dynamo and the backend did."""
    if isinstance(error, ShortenTraceback):
        return error.remove_dynamo_frames()
    return error if config.verbose else error.with_traceback(None)
