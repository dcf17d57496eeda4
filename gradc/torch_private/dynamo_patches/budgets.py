"""Dynamo compiles as long as a budget allows; what is left then runs as it is, and what is compiled already, compiled."""

from __future__ import annotations

import types
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Protocol

from torch._dynamo import convert_frame
from torch._dynamo.convert_frame import CatchErrorsWrapper, ConvertFrameReturn, input_codes
from torch._dynamo.types import FrameAction, FrameExecStrategy

from gradc.torch_private.ours import is_frame_ours
from gradc.torch_private.patches import Method, Patch
from gradc.torch_private.weaver import around

# As at the recompile limit: nothing inside is compiled either, or the time would go there. The next call asks again.
_RUN_AS_IT_IS = ConvertFrameReturn(
    frame_exec_strategy=FrameExecStrategy(FrameAction.RUN_ONLY, FrameAction.RUN_ONLY), apply_to_code=False
)


class Purse(Protocol):
    """See gradc.policy.budget."""

    def allows(self, code: types.CodeType) -> bool: ...
    def spending(self, code: types.CodeType) -> AbstractContextManager[None]: ...
    def refuse(self, code: types.CodeType) -> None: ...


def compile_within_budgets(purse_of: Callable[[Any], Purse | None]) -> Patch:
    """Ask the purse of a backend before a frame is traced, and let it pay; ``purse_of`` is None for what is not gradc's.

    A frame that was refused is asked for at each call, and refused before Dynamo prepares to trace it: that takes 2 us, not 50.
    """
    refused: weakref.WeakKeyDictionary[types.CodeType, tuple[Any, Purse]] = weakref.WeakKeyDictionary()

    def compile(original: Method, code: types.CodeType, *args: Any, **kwargs: Any) -> Any:
        compiler = args[4]
        purse = purse_of(compiler)
        if purse is None:
            return original(code, *args, **kwargs)
        if not purse.allows(code):
            refused[code] = compiler, purse
            purse.refuse(code)
            return _RUN_AS_IT_IS
        with purse.spending(code):
            return original(code, *args, **kwargs)

    def call(original: Method, self: Any, frame: Any, *args: Any) -> Any:
        code = frame.f_code
        if code in refused and code in input_codes:  # empty after a reset
            compiler, purse = refused[code]
            if compiler is _backend_of(self) and not purse.allows(code):
                purse.refuse(code)
                return _RUN_AS_IT_IS
            del refused[code]
        return original(self, frame, *args)

    return Patch(
        "compile_within_budgets",
        "Dynamo traces a function again after each graph break: where there are hundreds, a first step takes half a minute.",
        (around(convert_frame, "_compile", compile), around(CatchErrorsWrapper, "__call__", call, scope=is_frame_ours)),
    )


def _backend_of(wrapper: Any) -> Any:
    while hasattr(wrapper, "_torchdynamo_orig_backend"):
        wrapper = wrapper._torchdynamo_orig_backend
    return wrapper
