"""A frame that Dynamo runs other code in: the user's own code of it, to be run again.

frame_as_written:  () -> () -> what the user's code does with the arguments of the innermost frame that Dynamo's code runs in,
                   Dynamo aside; None where that cannot be, or other frames than torch's and gradc's lie between
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
_WITHOUT_FUNCTIONS_OF_SUBCLASSES = "_tf_disabled_wrapper"  # calls a graph that was traced through a __torch_function__
_DRAWS = "__gen_rand_values"  # by which Dynamo's code calls Python's random before the graph


def frame_as_written() -> Callable[[], Any] | None:
    """See the module's docstring."""
    frame: types.FrameType | None = sys._getframe(1)
    between = set[str]()
    while frame is not None and frame.f_code not in orig_code_map and frame.f_code.co_filename.startswith(_NOT_THE_USERS):
        between.add(frame.f_code.co_name)
        frame = frame.f_back
    run = None if frame is None or frame.f_code not in orig_code_map else _as_written(frame)
    return _with_functions_of_subclasses(run) if run is not None and _WITHOUT_FUNCTIONS_OF_SUBCLASSES in between else run


def _as_written(frame: types.FrameType) -> Callable[[], Any] | None:
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
    return functools.partial(torch._dynamo.disable(function), *args, **kwargs)


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
