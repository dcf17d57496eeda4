"""What happens where Dynamo itself breaks down: the user's function runs as it is, and that is counted."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from torch._dynamo import graph_break_hints
from torch._dynamo.convert_frame import ConvertFrame, ConvertFrameAssert, ConvertFrameReturn
from torch._dynamo.exc import (
    BackendCompilerFailed,
    InternalTorchDynamoError,
    TorchDynamoException,
    TorchRuntimeError,
    format_graph_break_message,
)
from torch._dynamo.symbolic_convert import InstructionTranslatorBase
from torch._dynamo.types import FrameAction, FrameExecStrategy

from gradc.errors import is_passing
from gradc.torch_private.dynamo_names import FAKE_CALL_RAISED
from gradc.torch_private.fakes import heed_guards
from gradc.torch_private.modes import close_transforms, transforms
from gradc.torch_private.ours import is_frame_ours
from gradc.torch_private.patches import Method, Patch
from gradc.torch_private.weaver import around, before

FAILED = "tracing failed"
FAKE_CALL = "RuntimeError when making fake tensor call"  # as Dynamo says it, of one that nothing catches
_BREAKDOWNS = (AssertionError, BackendCompilerFailed, InternalTorchDynamoError, TorchRuntimeError)
_FROM_CODE = "\n\nfrom user code:\n"  # what Dynamo adds to errors that come out of its own code, an IndexError say


def run_eagerly_where_dynamo_fails(note: Callable[[str, str], None]) -> Patch:
    """Run a frame as it is if Dynamo breaks down over it: an assertion of its own fails, or a call with fake tensors does.

    The user may be to blame: eager then says so in its own words, and the next call is tried again. Code that fails twice is
    never compiled, and each call of it told. Where only memory ran out, or recursion was too deep, in Dynamo or in gradc,
    every next call is tried again: that may not happen there. Not under ``fullgraph=True``. ``note`` is called with the
    error's words and the place of the code.
    """
    failed: weakref.WeakSet[Any] = weakref.WeakSet()

    def call(original: Method, self: Any, frame: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return original(self, frame, *args, **kwargs)
        except Exception as error:
            if self._inner_convert._box.error_on_graph_break:
                raise
            if not _is_breakdown(error):
                raise
            passing = _passing_cause(error)
            if isinstance(error, BackendCompilerFailed) and passing is None:
                raise
            code = frame.f_code
            text = f"{type(passing or error).__name__}: {passing or error}".split("\n")[0]
            if code in failed and passing is None:
                return ConvertFrameReturn(skip_reason=f"{FAILED}: {text}")
            note(text, f"File: {code.co_filename}:{code.co_firstlineno} in {code.co_name}")
            if passing is None:
                failed.add(code)
            return ConvertFrameReturn(frame_exec_strategy=FrameExecStrategy(FrameAction.DEFAULT, FrameAction.DEFAULT))

    def tracer(original: Method, self: Any, *args: Any, **kwargs: Any) -> Any:
        entered = transforms()
        heed_guards()
        try:
            return original(self, *args, **kwargs)
        except BaseException:
            if transforms() != entered:
                close_transforms(entered)  # what Dynamo enters while it traces
            raise

    def handler(self: Any, raised_exception: Exception) -> None:
        if isinstance(raised_exception, FAKE_CALL_RAISED):
            words = format_graph_break_message(FAKE_CALL, "", str(raised_exception), [*graph_break_hints.USER_ERROR])
            raise TorchRuntimeError(words, getattr(raised_exception, "real_stack", None)) from raised_exception

    return Patch(
        "run_eagerly_where_dynamo_fails",
        "A program that runs in eager must not raise because Dynamo breaks down over it, nor catch an error in Dynamo's words.",
        (
            around(ConvertFrame, "__call__", call, scope=is_frame_ours),
            around(ConvertFrameAssert, "__call__", tracer, scope=is_frame_ours),
            before(InstructionTranslatorBase, "exception_handler", handler),
        ),
    )


def _is_breakdown(error: Exception) -> bool:
    is_of_dynamos_code = not isinstance(error, TorchDynamoException) and _FROM_CODE in str(error)
    return isinstance(error, _BREAKDOWNS) or is_of_dynamos_code


def _passing_cause(error: BaseException) -> BaseException | None:
    """What says nothing about the program, if that is what Dynamo wrapped."""
    cause: BaseException | None = error
    while cause is not None and not is_passing(cause):
        cause = getattr(cause, "inner_exception", None) or cause.__cause__ or cause.__context__
    return cause
