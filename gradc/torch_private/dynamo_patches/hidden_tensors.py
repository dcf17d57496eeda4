"""Functions that reach tensors only through objects, as a trainer's method with nothing but ``self`` does.

Dynamo looks for tensors among a function's variables, in lists and dictionaries, but not in objects; and a function that was
once called without any it leaves to Python for good, uncounted.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import itertools
import os
import types
import weakref
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch._dynamo import convert_frame
from torch._dynamo.convert_frame import CatchErrorsWrapper, input_codes

from gradc.torch_private.dynamo_patches.settings import is_compiling_for_gradc
from gradc.torch_private.patches import IsOurs, Method, Patch, Replace

NO_TENSORS = "no tensor-related objects found in frame"
_MOST_OBJECTS = 200  # that are looked into
_MOST_CALLS = 64  # without tensors, until a function is left to Python for good: to look takes some 5 us
_STANDARD_LIBRARY = os.path.dirname(os.__file__)
_LEAVES = (str, bytes, int, float, complex, type(None), type, types.ModuleType, types.FunctionType, types.BuiltinFunctionType)


@dataclasses.dataclass(frozen=True)
class _Known:
    """A function that was called without tensors. ``last_answer``: the one after which Dynamo forgets it."""

    asker: Any
    answer: Any
    last_answer: Any
    number: Iterator[int] = dataclasses.field(default_factory=itertools.count)


def look_into_objects(is_ours: IsOurs) -> Patch:
    """Look into objects' attributes, too, and look again at the next calls."""
    known: weakref.WeakKeyDictionary[types.CodeType, _Known] = weakref.WeakKeyDictionary()

    def make_look(original: Method) -> Method:
        @functools.wraps(original)
        def has_tensor_in_frame(frame: Any) -> bool:
            if original(frame):
                return True
            is_looked_into = is_compiling_for_gradc() and not _is_of_python(frame.f_code)
            return is_looked_into and reach_tensors(frame.f_locals.values())

        return has_tensor_in_frame

    def make_call(original: Method) -> Method:
        @functools.wraps(original)
        def call(self: Any, frame: Any, *args: Any) -> Any:
            code = frame.f_code
            found = known.get(code)
            if found is None or found.asker is not self or code not in input_codes:  # which is empty after a reset
                return original(self, frame, *args)
            if has_tensors(frame):
                del known[code]
                return original(self, frame, *args)
            return found.answer if next(found.number) < _MOST_CALLS else found.last_answer

        return call

    def make_handle(original: Method) -> Method:
        @functools.wraps(original)
        def handle_skip(self: Any, result: Any, frame: Any) -> Any:
            result = original(self, result, frame)
            if result.skip_reason != NO_TENSORS or not is_ours(self) or _is_of_python(frame.f_code):
                return result
            answer = dataclasses.replace(result, apply_to_code=False)
            known[frame.f_code] = _Known(self, answer, result)
            return answer

        return handle_skip

    def has_tensors(frame: Any) -> bool:
        return convert_frame.has_tensor_in_frame(frame) or reach_tensors(frame.f_locals.values())

    return Patch(
        "look_into_objects",
        "Dynamo leaves a function to Python whose tensors lie in objects, or that was called without any once.",
        (
            Replace(convert_frame, "has_tensor_in_frame", make_look),
            Replace(CatchErrorsWrapper, "__call__", make_call),
            Replace(CatchErrorsWrapper, "_handle_skip", make_handle),
        ),
    )


def _is_of_python(code: types.CodeType) -> bool:
    """A function of the standard library's, as contextlib's: it calls others, which are compiled, and computes nothing."""
    return code.co_filename.startswith(_STANDARD_LIBRARY) and "site-packages" not in code.co_filename


def reach_tensors(values: Iterable[Any]) -> bool:
    """True if one of the first objects that are reached from these, by attributes and as items, is a tensor or a module.

    Runs no code of the objects'.
    """
    queue, seen = collections.deque(values), set[int]()
    while queue and len(seen) < _MOST_OBJECTS:
        value = queue.popleft()
        if issubclass(type(value), (torch.Tensor, torch.nn.Module)):
            return True
        if id(value) not in seen and not issubclass(type(value), _LEAVES):
            seen.add(id(value))
            queue.extend(_inside(value))
    return False


def _inside(value: Any) -> Iterable[Any]:
    """Items and attributes."""
    if issubclass(type(value), dict):
        items = list(dict.values(value))
    else:
        items = list(value) if type(value) in (list, tuple, set, frozenset, collections.deque) else []
    try:
        attributes = object.__getattribute__(value, "__dict__")
    except AttributeError:
        return items[:_MOST_OBJECTS]
    return [*items, *dict.values(attributes)][:_MOST_OBJECTS]
