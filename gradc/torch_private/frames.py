"""A frame that Dynamo runs other code in: the user's own code of it, to be run again.

calling_frame: () -> the innermost frame that Dynamo's code runs in, if only torch's and gradc's lie between; else None
as_written:    such a frame -> () -> what the user's code does with its arguments, Dynamo aside; None where that cannot be
can_be_as_written: the user's code -> False where that can never be
"""

from __future__ import annotations

import dis
import functools
import inspect
import pathlib
import sys
import types
from collections.abc import Callable
from typing import Any

import torch
from torch._dynamo.utils import orig_code_map

_NOT_THE_USERS = (str(pathlib.Path(torch.__file__).parent), str(pathlib.Path(__file__).parents[1]))
_WITHOUT_FUNCTIONS_OF_SUBCLASSES = "_tf_disabled_wrapper"  # by which Dynamo calls such a graph
_DRAWS = "__gen_rand_values"  # by which Dynamo's code calls Python's random before the graph


def calling_frame() -> types.FrameType | None:
    """See the module's docstring."""
    frame: types.FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code not in orig_code_map and frame.f_code.co_filename.startswith(_NOT_THE_USERS):
        frame = frame.f_back
    return frame if frame is not None and frame.f_code in orig_code_map else None


def as_written(frame: types.FrameType) -> Callable[[], Any] | None:
    """See the module's docstring."""
    code: types.CodeType = orig_code_map[frame.f_code]
    values, given = frame.f_locals, inspect.getargs(code)
    named = code.co_varnames[: code.co_argcount]
    keywords = code.co_varnames[code.co_argcount : code.co_argcount + code.co_kwonlyargcount]
    needed = [*named, *keywords, *filter(None, (given.varargs, given.varkw)), *code.co_freevars]
    if any(name not in values for name in needed) or not can_be_as_written(code) or _draws(frame.f_code):
        return None
    closure = tuple(types.CellType(values[name]) for name in code.co_freevars)
    function = types.FunctionType(code, frame.f_globals, code.co_name, None, closure)
    args = [*(values[name] for name in named), *(values[given.varargs] if given.varargs else ())]
    kwargs = {**{name: values[name] for name in keywords}, **(values[given.varkw] if given.varkw else {})}
    run = functools.partial(torch._dynamo.disable(function), *args, **kwargs)
    return _with_functions_of_subclasses(run) if _are_functions_of_subclasses_off(frame) else run


def _are_functions_of_subclasses_off(frame: types.FrameType) -> bool:
    """Whether Dynamo, which has traced through a ``__torch_function__``, has the graph of this frame called without."""
    inner: types.FrameType | None = sys._getframe(1)
    while inner is not None and inner is not frame:
        if inner.f_code.co_name == _WITHOUT_FUNCTIONS_OF_SUBCLASSES:
            return True
        inner = inner.f_back
    return False


def _with_functions_of_subclasses(run: Callable[[], Any]) -> Callable[[], Any]:
    def function() -> Any:
        with torch._C._EnableTorchFunction():
            return run()

    return function


def can_be_as_written(code: types.CodeType) -> bool:
    """Not where it, or a function made in it, sets a variable of a function around it: the frame's cells are out of reach."""
    steps = (step for part in _parts(code) for step in dis.get_instructions(part))
    return not any(step.opname in ("STORE_DEREF", "DELETE_DEREF") and step.argval in code.co_freevars for step in steps)


def _parts(code: types.CodeType) -> list[types.CodeType]:
    return [code, *(part for const in code.co_consts if isinstance(const, types.CodeType) for part in _parts(const))]


def _draws(code: types.CodeType) -> bool:
    return any(name.startswith(_DRAWS) for name in code.co_names)
