"""Frames that get other code than Dynamo would make of them: what Dynamo is to be answered, and the code.

begun_with: code, instructions -> the code with them before the first of its own
cut_to:     code, instructions -> the code with nothing but them
left_early: code, instructions -> the code, that returns None at once if what these leave on the stack is true
called:      function, names -> instructions that call it with the frame's variables of these names
unless_done: function, instruction -> instructions that return None if ``function(args, kwargs)`` is true, or else go on there
in_place_of: code, other code, condition -> what Dynamo is told: run the other one wherever the condition holds
"""

from __future__ import annotations

import dataclasses
import functools
import sys
import types
from collections.abc import Callable, Sequence
from typing import Any

from torch._C._dynamo.eval_frame import set_eval_frame
from torch._dynamo.bytecode_transformation import (
    create_call_function,
    create_instruction,
    create_load_const,
    transform_code_object,
)
from torch._dynamo.convert_frame import ConvertFrameReturn
from torch._dynamo.guards import GuardManagerType, GuardManagerWrapper, get_framelocals_idx
from torch._dynamo.types import GuardedCode, wrap_guarded_code
from torch._dynamo.utils import orig_code_map
from torch._guards import CompileId

_JUMP_IF_FALSE = "POP_JUMP_FORWARD_IF_FALSE" if sys.version_info < (3, 12) else "POP_JUMP_IF_FALSE"


@dataclasses.dataclass(frozen=True)
class Is:
    """A condition that Dynamo looks at without Python: the frame's variable ``name`` is ``value``."""

    name: str
    value: Any


Condition = Is | Callable[[dict[str, Any]], bool]  # or of a frame's variables


def begun_with(code: types.CodeType, begin: Sequence[Any]) -> types.CodeType:
    return _changed(code, begin, keeps_rest=True)


def cut_to(code: types.CodeType, body: Sequence[Any]) -> types.CodeType:
    return _changed(code, body, keeps_rest=False)


def left_early(code: types.CodeType, asked: Sequence[Any]) -> types.CodeType:
    def transform(instructions: list[Any], options: dict[str, Any]) -> None:
        begin = _begin(instructions)
        instructions[begin:begin] = [*asked, *_returned_if_true(instructions[begin])]

    return transform_code_object(code, transform)[0]


def called(function: Callable[..., Any], names: Sequence[str] = ("args", "kwargs")) -> list[Any]:
    arguments = [create_instruction("LOAD_FAST", argval=name) for name in names]
    return [create_load_const(function, checked=False), *arguments, *create_call_function(len(names), push_null=True)]


def unless_done(function: Callable[..., Any], otherwise: Any) -> list[Any]:
    return [*called(function), *_returned_if_true(otherwise)]


def _returned_if_true(otherwise: Any) -> list[Any]:
    jump = create_instruction(_JUMP_IF_FALSE, target=otherwise)
    return [jump, create_load_const(None), create_instruction("RETURN_VALUE")]


def in_place_of(
    code: types.CodeType, other: types.CodeType, what: str, condition: Condition | None = None
) -> ConvertFrameReturn:
    """See the module's docstring. ``what`` says in words where the condition holds; without one, it always does."""
    guards = GuardManagerWrapper()
    if isinstance(condition, Is):
        name, value = condition.name, condition.value
        place = (name, get_framelocals_idx(code, name))
        variable = guards.root.framelocals_manager(place, f"L[{name!r}]", value, GuardManagerType.GUARD_MANAGER)
        variable.add_id_match_guard(id(value), [what], None)
        guards.gradc_value = value  # type: ignore[attr-defined]  # or another object might come to have its id
    elif condition is not None:
        guards.root.add_lambda_guard(condition, [what], None)
    guards.closure_vars, guards.global_scope, guards.code_parts, guards.verbose_code_parts = {}, {"G": {}}, [what], [what]
    orig_code_map[other] = code  # where another compilation asks why this one did not serve
    compile_id = CompileId(frame_id=0, frame_compile_id=0)
    return wrap_guarded_code(GuardedCode(other, guards, compile_id, f"gradc: {what}"))  # type: ignore[arg-type]


def without_dynamo(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        callback = set_eval_frame(None)
        try:
            return function(*args, **kwargs)
        finally:
            set_eval_frame(callback)

    return call


def _changed(code: types.CodeType, added: Sequence[Any], *, keeps_rest: bool) -> types.CodeType:
    def transform(instructions: list[Any], options: dict[str, Any]) -> None:
        begin = _begin(instructions)
        instructions[begin : begin if keeps_rest else None] = added

    return transform_code_object(code, transform)[0]


def _begin(instructions: list[Any]) -> int:
    return next(place for place, instruction in enumerate(instructions) if instruction.opname == "RESUME") + 1
