"""``torch.compiler.is_compiling()`` and its like in code that gradc compiles: False, as in eager.

Libraries take another way where they are told that they are compiled: one that rounds otherwise, or draws other numbers. Under
``fullgraph=True`` the way of eager may be one that Dynamo cannot trace; ``advice_for`` says so where that raises.
"""

from __future__ import annotations

import contextlib
import os
import threading
from typing import Any

import torch
from torch._dynamo import external_utils
from torch._dynamo.exc import raise_observed_exception
from torch._dynamo.guards import GuardBuilder, install_guard
from torch._dynamo.source import CallFunctionNoArgsSource
from torch._dynamo.variables import SkipFunctionVariable, VariableTracker
from torch._dynamo.variables.torch import TorchInGraphFunctionVariable
from torch.nn.modules import activation

from gradc.torch_private.patches import Method, Patch
from gradc.torch_private.weaver import around, instead

_QUESTIONS = (
    torch.compiler.is_compiling,
    torch.compiler.is_dynamo_compiling,
    torch.compiler.is_exporting,
    torch._utils.is_compiling,
    external_utils.is_compiling,
    torch._dynamo.eval_frame._is_in_optimized_module,
    activation._is_make_fx_tracing,
)
_TORCH = os.path.dirname(torch.__file__)
_OF_TORCH = os.path.join(_TORCH, "")
_asked = threading.local()  # where: the last code that was answered
_OPERATORS = tuple(  # what asks in order to become an operator, or is Dynamo's own: there is no other way through it
    os.path.join(_TORCH, *name.split("/"))
    for name in ("_higher_order_ops/", "_functorch/", "_dynamo/", "nn/attention/flex_attention.py")
)


def forget_who_asked() -> None:
    """Before a function is traced."""
    _asked.__dict__.clear()


def advice_for(advice: str) -> str:
    """``advice`` on what could not be traced, and who asked in this trace whether it is compiled."""
    where = getattr(_asked, "where", None)
    if where is None:
        return advice
    told = (
        f"It may have come here since torch.compiler.is_compiling() is False, as in eager ({where}):\n"
        "  leave out fullgraph=True, compile what is called before and after apart, or write the way that can be traced."
    )
    return f"{advice}\n  {told}" if advice else told


def answer_as_in_eager() -> Patch:
    """Tell code that asks whether it is compiled, traced or exported that it is not.

    Dynamo answers while it traces; what it runs while it compiles, and every other thread meanwhile, asks a global flag: that
    is not raised for gradc. Not told are torch's own operators that take functions, such as ``torch.cond``.
    """

    handlers = TorchInGraphFunctionVariable._get_handlers()
    return Patch(
        "answer_as_in_eager",
        "Told that they are compiled, libraries take another way than in eager, and round otherwise.",
        (
            *(around(handlers, question, _answer) for question in _QUESTIONS),
            instead(handlers, torch.cuda.is_current_stream_capturing, _capturing, may_be_missing=True),
            around(SkipFunctionVariable, "call_function", _skipped),
            instead(torch.compiler, "_compile_session_context", _no_session),
        ),
    )


def _answer(original: Method, self: Any, tx: Any, *args: Any, **kwargs: Any) -> Any:
    if _is_operator(tx.f_code):
        return original(self, tx, *args, **kwargs)
    if not tx.f_code.co_filename.startswith(_OF_TORCH):
        _asked.where = f"File: {tx.f_code.co_filename}:{tx.current_instruction.positions.lineno} in {tx.f_code.co_name}"
    return VariableTracker.build(tx, False)


def _capturing(self: Any, tx: Any) -> Any:
    """What it answers now, and a guard; a build of torch without such devices raises."""
    try:
        answer = self.value()
    except RuntimeError as error:
        raise_observed_exception(RuntimeError, tx, args=list(error.args))
    if self.source is None:
        return None
    install_guard(CallFunctionNoArgsSource(self.source).make_guard(GuardBuilder.EQUALS_MATCH))
    return VariableTracker.build(tx, answer)


def _skipped(original: Method, self: Any, tx: Any, *args: Any, **kwargs: Any) -> Any:
    """Dynamo has a rule for CUDA's question; XPU's is a function that it does not call."""
    is_asked = self.value is torch.xpu.is_current_stream_capturing
    answer = _capturing(self, tx) if is_asked else None
    return original(self, tx, *args, **kwargs) if answer is None else answer


def _no_session() -> contextlib.nullcontext[None]:
    return contextlib.nullcontext()


def _is_operator(code: Any) -> bool:
    """``torch._dynamo.is_compiling`` itself asks for whoever calls it."""
    return code.co_filename.startswith(_OPERATORS) and code is not external_utils.is_compiling.__code__
