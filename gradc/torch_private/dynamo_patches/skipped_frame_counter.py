"""A function that Dynamo leaves to Python counts its calls itself: its code gets one call more, at the beginning.

    counted: code, what tells -> what Dynamo is to do with the function's frames; None where only Dynamo can be asked each time

To be asked costs 20 us a call and more, and most training steps have such a function: the rest behind ``optimizer.zero_grad()``
has the loss and the optimizer as its variables, and no tensor. Here only calls that lead to tensors are told.
"""

from __future__ import annotations

import inspect
import itertools
import sys
import types
from collections.abc import Callable
from typing import Any

from torch._C._dynamo.eval_frame import set_code_exec_strategy
from torch._dynamo.bytecode_transformation import create_call_function, create_instruction, create_load_const
from torch._dynamo.convert_frame import ConvertFrameReturn
from torch._dynamo.types import FrameAction, FrameExecStrategy

from gradc.torch_private.dynamo_patches.code_replacement import begun_with, in_place_of, without_dynamo
from gradc.torch_private.dynamo_patches.tensor_reachability import Path, leads_to_tensor, path_to_tensor

MOST_CALLS = 1000  # that are told of one function
MOST_QUIET_CALLS = 64  # that reach no tensors, of one function; to look takes up to 50 us
_LEFT_TO_PYTHON = FrameExecStrategy(FrameAction.SKIP, FrameAction.DEFAULT)  # what it calls may be compiled
_IN_PARTS = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
_OF_A_CELL = "LOAD_FAST" if sys.version_info >= (3, 13) else "LOAD_CLOSURE"


def counted(code: types.CodeType, tell: Callable[[], None]) -> ConvertFrameReturn | None:
    """See the module's docstring."""
    if code.co_flags & _IN_PARTS or not code.co_flags & inspect.CO_OPTIMIZED:
        return None
    loads = [*map(_load, _arguments(code), itertools.repeat(code)), *map(_load_cell, code.co_freevars)]
    begin = [
        create_load_const(without_dynamo(_Counter(code, tell)), checked=False),
        *loads,
        create_instruction("BUILD_TUPLE", arg=len(loads)),
        *create_call_function(1, push_null=True),
        create_instruction("POP_TOP"),
    ]
    return in_place_of(code, begun_with(code, begin), "counts its calls")


def _arguments(code: types.CodeType) -> tuple[str, ...]:
    num_packed = sum(bool(code.co_flags & flag) for flag in (inspect.CO_VARARGS, inspect.CO_VARKEYWORDS))
    return code.co_varnames[: code.co_argcount + code.co_kwonlyargcount + num_packed]


def _load(name: str, code: types.CodeType) -> Any:
    return create_instruction("LOAD_DEREF" if name in code.co_cellvars else "LOAD_FAST", argval=name)


def _load_cell(name: str) -> Any:
    """The cell itself: it may be empty."""
    return create_instruction(_OF_A_CELL, argval=name)


class _Counter:
    """What a function's code calls first, with the values of its arguments, and the cells of its closure."""

    def __init__(self, code: types.CodeType, tell: Callable[[], None]) -> None:
        self._code, self._tell = code, tell
        self._path: Path = ()
        self._told, self._quiet = itertools.count(1), itertools.count(1)

    def __call__(self, variables: tuple[Any, ...]) -> None:
        if self._is_last(self._values(variables)):
            set_code_exec_strategy(self._code, _LEFT_TO_PYTHON)

    def _values(self, variables: tuple[Any, ...]) -> list[Any]:
        num_own = len(variables) - len(self._code.co_freevars)
        return [*variables[:num_own], *itertools.chain.from_iterable(map(_contents, variables[num_own:]))]

    def _is_last(self, values: list[Any]) -> bool:
        if not leads_to_tensor(values, self._path):  # as at the last call: that way is short
            path = path_to_tensor(values)
            if path is None:
                return next(self._quiet) >= MOST_QUIET_CALLS
            self._path = path
        self._tell()
        return next(self._told) >= MOST_CALLS


def _contents(cell: types.CellType) -> tuple[Any, ...]:
    try:
        return (cell.cell_contents,)
    except ValueError:
        return ()
