"""Functions that Python runs while somebody watches: a profiler the labels inside, a function mode each call of torch's.

    LeftForNow(...).end_graph(tx, context)
    left_for_now: a name that is counted, code, what tells -> what Dynamo is told | None

What was compiled before stays, and serves again when nobody watches. What such a function calls is compiled by itself.
"""

from __future__ import annotations

import dataclasses
import inspect
import os
import types
import weakref
from collections.abc import Callable
from typing import Any, NoReturn

import torch
from torch._dynamo.bytecode_transformation import create_instruction
from torch._dynamo.convert_frame import ConvertFrameReturn
from torch._dynamo.guards import GuardBuilder, install_guard
from torch._dynamo.source import AttrSource, GlobalStateSource
from torch._dynamo.symbolic_convert import InstructionTranslator
from torch._dynamo.variables.ctx_manager import ProfilerContextVariable, ProfilerRecordFunctionContextVariable
from torch._dynamo.variables.torch import TorchCtxManagerClassVariable
from torch._dynamo.variables.torch_function import TorchFunctionModeVariable

from gradc.torch_private.dynamo_patches.code_replacement import begun_with, called, in_place_of, without_dynamo
from gradc.torch_private.dynamo_patches.ends import PREFIX, end_graph
from gradc.torch_private.modes import is_seen_by_function_modes, sees_calls
from gradc.torch_private.patches import Patch
from gradc.torch_private.weaver import before, instead

_PROFILER = "torch.autograd.profiler"
_TORCH = os.path.join(os.path.dirname(torch.__file__), "")
_IN_PARTS = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR


@dataclasses.dataclass(frozen=True)
class LeftForNow:
    """A reason to leave functions to Python, and whether it holds now: asked before each call of such a function."""

    name: str
    explanation: str
    holds: Callable[[], bool]
    met_in: weakref.WeakSet[types.CodeType] = dataclasses.field(default_factory=weakref.WeakSet)

    def end_graph(self, tx: Any, context: object) -> NoReturn:
        """Where it is met in a function that was called, the code around it goes on in parts: as long as the reason holds."""
        self.met_in.add(tx.output.root_tx.f_code)
        end_graph(self.name, self.explanation, context, skip_frame=True)

    def guard(self, builder: Any, guard: Any) -> None:
        """Add the guard: Dynamo calls this when all is traced."""
        builder.guard_manager.root.add_lambda_guard(lambda _: self.holds(), [self.explanation], guard.user_stack)


def _is_profiled() -> bool:
    return bool(torch.autograd.profiler._is_profiler_enabled)


LABEL = LeftForNow(
    "label for profilers",
    "while a profiler runs, gradc leaves a function that labels its parts to Python: a graph has no parts.",
    _is_profiled,
)
MODE = LeftForNow(
    "function mode",
    "while a torch function mode is on, gradc leaves functions to Python: the mode is to see every call, as in eager.",
    is_seen_by_function_modes,
)
_REASONS = {PREFIX + reason.name: reason for reason in (LABEL, MODE)}


def left_for_now(kind: str, code: types.CodeType, tell: Callable[[], None]) -> ConvertFrameReturn | None:
    """The code itself, which tells first, wherever the reason holds; None for another reason, or code that runs in parts."""
    reason = _REASONS.get(kind)
    if reason is None or code.co_flags & _IN_PARTS:
        return None
    begin = [*called(without_dynamo(tell), ()), create_instruction("POP_TOP")]
    return in_place_of(code, begun_with(code, begin), reason.explanation, lambda _: reason.holds())


def is_left_for_now(kind: str) -> bool:
    return kind in _REASONS


def leave_labels_to_profilers() -> Patch:
    """Leave a function with labels to Python while a profiler runs, and one that begins or ends a profile at any time.

    Without a profiler the labels cost one guard on the flag that profilers set. Labels in torch's own code are left out as
    before: those of optimizers have handlers of their own.
    """
    return Patch(
        "leave_labels_to_profilers",
        "Dynamo leaves out the labels of a function, and profilers that it enters: the trace shows neither.",
        (
            instead(ProfilerRecordFunctionContextVariable, "create", _create),
            before(ProfilerRecordFunctionContextVariable, "enter", _enter),
            before(TorchCtxManagerClassVariable, "call_function", _call),
            before(ProfilerContextVariable, "enter", _profile),
            before(InstructionTranslator, "run", _run),
        ),
    )


def _enter(self: Any, tx: Any) -> None:
    _meet_label(tx)


def _call(self: Any, tx: Any, *args: Any, **kwargs: Any) -> None:
    """What makes a label: somebody else may enter it."""
    if self.value is torch.autograd.profiler.record_function:
        _meet_label(tx)


def _create(*args: Any, **kwargs: Any) -> Any:
    """Without the warning that the label is ignored."""
    return ProfilerRecordFunctionContextVariable()


def _run(self: Any) -> None:
    if self.f_code in LABEL.met_in and _is_profiled():
        self.output.guards.add(GlobalStateSource().make_guard(LABEL.guard))


def _profile(self: Any, tx: Any) -> None:
    end_graph("profiler", "a profile begins here: Python begins it.", "torch.profiler.profile", skip_frame=True)


def _meet_label(tx: Any) -> None:
    if tx.f_code.co_filename.startswith(_TORCH):
        return
    if _is_profiled():
        LABEL.end_graph(tx, "record_function")
    flag = AttrSource(tx.import_source(_PROFILER), "_is_profiler_enabled")
    install_guard(flag.make_guard(GuardBuilder.CONSTANT_MATCH))


def leave_calls_to_function_modes() -> Patch:
    """Leave functions to Python while a ``TorchFunctionMode`` of the user's is on, and those that enter one at any time."""
    return Patch(
        "leave_calls_to_function_modes",
        "Dynamo calls a mode for what it puts into its graphs: not for attributes of tensors, nor for state that is set.",
        (
            before(InstructionTranslator, "run", _run_in_mode),
            before(TorchFunctionModeVariable, "enter", _enter_mode),
        ),
    )


def _run_in_mode(self: Any) -> None:
    if self.f_code.co_name == "__torch_function__":
        name = "tensor subclass" if isinstance(next(iter(self.f_locals.values()), None), type) else "function mode"
        explanation = "what sees a call makes it, as in eager, and no graph."
        end_graph(name, explanation, "__torch_function__", skip_frame=True)
    modes = [variable.value for variable in self.symbolic_torch_function_state.mode_stack]
    if any(map(sees_calls, modes)):
        MODE.end_graph(self, type(modes[-1]).__name__)


def _enter_mode(self: Any, tx: Any) -> None:
    if not tx.f_code.co_filename.startswith(_TORCH):
        explanation = "a torch function mode is to see every call, as in eager: Python enters it."
        end_graph("function mode that is entered", explanation, type(self.value).__name__, skip_frame=True)
