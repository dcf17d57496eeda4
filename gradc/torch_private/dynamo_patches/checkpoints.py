"""``torch.utils.checkpoint`` called by compiled code: it runs as it is, and the function that it is given runs compiled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._C._dynamo.eval_frame import get_eval_frame_callback
from torch._dynamo.eval_frame import (
    get_eval_frame_isolate_recompiles_id,
    set_eval_frame,
    set_eval_frame_isolate_recompiles_id,
)
from torch.utils.checkpoint import checkpoint

from gradc.torch_private.ours import is_ours
from gradc.torch_private.patches import Method, Patch
from gradc.torch_private.weaver import around

_DISABLED = "__dynamo_disable"  # of a function that torch keeps Dynamo out of: what is called in its place


def compile_inside_of_checkpoints() -> Patch:
    """Let Dynamo into the function of a checkpoint, at both of its runs; torch keeps it out of all that checkpoint calls.

    What such a function saves, and in which order, is the same compiled or not: so one of its runs may be compiled and the
    other not, for want of time to compile.
    """
    return Patch(
        "compile_inside_of_checkpoints",
        "What is checkpointed is most of a large model, and it would all run eagerly.",
        (around(_undecorated(), _DISABLED, _checkpoint, scope=_is_called_by_ours),),
    )


def _undecorated() -> Callable[..., Any]:
    """checkpoint, which keeps what torch makes of it at its first call."""
    function: Callable[..., Any] = checkpoint.__wrapped__  # type: ignore[attr-defined]
    if not hasattr(function, _DISABLED):
        setattr(function, _DISABLED, torch._dynamo.disable(function, True, wrapping=False))
    return function


def _is_called_by_ours(*_: Any, **__: Any) -> bool:
    return is_ours(get_eval_frame_callback())


def _checkpoint(original: Method, function: Any = None, *args: Any, **kwargs: Any) -> Any:
    """Without a function it is a decorator, since torch 2.14."""
    is_watched = kwargs.get("debug") or "context_fn" in kwargs  # op by op, by modes
    return original(function if is_watched or not callable(function) else _as_here(function), *args, **kwargs)


def _as_here(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, with Dynamo's callback that is in force now, wherever it is called."""
    callback, recompiles = get_eval_frame_callback(), get_eval_frame_isolate_recompiles_id()

    def call(*args: Any, **kwargs: Any) -> Any:
        callback_there, recompiles_there = set_eval_frame(callback), set_eval_frame_isolate_recompiles_id(recompiles)
        try:
            return function(*args, **kwargs)
        finally:
            set_eval_frame(callback_there)
            set_eval_frame_isolate_recompiles_id(recompiles_there)

    return call
