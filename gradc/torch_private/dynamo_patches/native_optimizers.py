"""Optimizers of torch's inside compiled code, their steps run by gradc itself: their frames get other code, torch stays."""

from __future__ import annotations

import contextvars
import functools
import types
from collections.abc import Callable
from typing import Any

from torch._C._dynamo.eval_frame import set_eval_frame
from torch._dynamo.bytecode_transformation import create_instruction
from torch._dynamo.convert_frame import ConvertFrame

from gradc.torch_private.dynamo_patches.code_replacement import Is, called, cut_to, in_place_of, unless_done
from gradc.torch_private.optimizers import HOOKED, Closure, Quick, Step, quick_of
from gradc.torch_private.ours import is_frame_ours
from gradc.torch_private.patches import Method, Patch
from gradc.torch_private.weaver import around

_callback: contextvars.ContextVar[Any] = contextvars.ContextVar("_callback", default=None)


def run_optimizers_natively(native_step: Callable[[Any, Any], Step | None]) -> Patch:
    """Where compiled code comes to the step of an optimizer, run ``native_step(step without hooks, backend)`` in its place.

    Where that is None, what would happen without. A step that compiled code does not come to stays torch's.
    """

    def convert(original: Method, self: Any, frame: Any, *args: Any, **kwargs: Any) -> Any:
        backend = self._torchdynamo_orig_backend
        if frame.f_code is HOOKED:
            step = frame.f_locals["func"]
            if native := native_step(step, backend):
                return _in_place_of(frame.f_code, step, quick_of(native), functools.partial(_run, native))
        return original(self, frame, *args, **kwargs)

    return Patch(
        "run_optimizers_natively",
        "The step of one of torch's optimizers that compiled code comes to is gradc's own, with the same bits.",
        (around(ConvertFrame, "__call__", convert, scope=is_frame_ours),),
    )


def is_step_of_compiled_code() -> bool:
    """True inside of a step that compiled code came to."""
    return _callback.get() is not None


def compiled_as_the_caller(closure: Closure) -> Closure:
    """``closure``, which a native step calls, compiled as the code that called the step."""

    def call() -> Any:
        previous = set_eval_frame(_callback.get())
        try:
            return closure()
        finally:
            set_eval_frame(previous)

    return call


def _run(native: Step, args: Any, kwargs: Any) -> Any:
    """The native step, with Dynamo off but in closures."""
    callback = set_eval_frame(None)
    token = _callback.set(callback)
    try:
        return native(*args, **kwargs)
    finally:
        _callback.reset(token)
        set_eval_frame(callback)


def _in_place_of(code: types.CodeType, step: Step, quick: Quick | None, run: Callable[[Any, Any], Any]) -> Any:
    """What Dynamo is to do with a frame of ``code``, while ``func`` is ``step``: ``quick``, and if that is false, ``run``."""
    body = [*called(run), create_instruction("RETURN_VALUE")]
    body = [*unless_done(quick.run, body[0]), *body] if quick else body
    what = "func is the step of an optimizer that gradc knows"
    return in_place_of(code, cut_to(code, body), what, Is("func", step))
