"""Functions that reach tensors only through objects, as a trainer's method with nothing but ``self`` does.

    computes: code, globals -> whether it may call an op          reach_tensors: values -> whether one leads to a tensor
    path_to_tensor: values -> the way to one          leads_to_tensor: values, such a way -> whether it does so here, too

Dynamo looks for tensors among a function's variables, in lists and dictionaries, but not in objects: such a function stays
Python's, and is told. (Compiled they are not: what Dynamo makes of some is another program.)
"""

from __future__ import annotations

import collections
import dis
import os
import types
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch

_STANDARD_LIBRARY = os.path.dirname(os.__file__)
_MOST_OBJECTS = 200  # that are looked into
_LEAVES = (str, bytes, int, float, complex, type(None), type, types.ModuleType, types.FunctionType, types.BuiltinFunctionType)
_ARITHMETIC = ("BINARY_OP", "COMPARE_OP", "UNARY_NEGATIVE", "UNARY_INVERT")
Path = tuple[int, ...]  # a place among the values, then one in what is inside the value there, and so on
_METHODS = {name for name in dir(torch.Tensor) if callable(getattr(torch.Tensor, name, None))} - set(dir(object))
_METHODS -= {"backward"}  # runs what forwards recorded, and is told of by itself


def computes(code: types.CodeType, names: Mapping[str, Any]) -> bool:
    """True if the function itself calculates, or calls what is named as a tensor's method, or a function of torch's.

    Python's own library computes on no tensors; what it calls is asked by itself.
    """
    if code.co_filename.startswith(_STANDARD_LIBRARY) and "site-packages" not in code.co_filename:
        return False
    if any(name in _METHODS or _is_of_torch(names.get(name)) for name in code.co_names):
        return True
    return any(instruction.opname in _ARITHMETIC for instruction in dis.get_instructions(code))


def _is_of_torch(value: Any) -> bool:
    module = getattr(value, "__module__", None) if isinstance(value, _LEAVES) else None
    return isinstance(module, str) and module.partition(".")[0] == "torch"


def reach_tensors(values: Iterable[Any]) -> bool:
    """True if one of the first objects that are reached from these, by attributes and as items, is a tensor or a module.

    Runs no code of the objects'.
    """
    return path_to_tensor(values) is not None


def path_to_tensor(values: Iterable[Any]) -> Path | None:
    """The way to the first one; None if there is none."""
    queue: collections.deque[tuple[Any, Path]] = collections.deque((value, (place,)) for place, value in enumerate(values))
    seen = set[int]()
    while queue and len(seen) < _MOST_OBJECTS:
        value, path = queue.popleft()
        if _is_tensor(value):
            return path
        if id(value) not in seen and not issubclass(type(value), _LEAVES):
            seen.add(id(value))
            queue.extend((inside, (*path, place)) for place, inside in enumerate(_inside(value)))
    return None


def leads_to_tensor(values: Sequence[Any], path: Path) -> bool:
    """True if ``path`` leads from these to a tensor or a module, too."""
    for place in path[:-1]:
        if place >= len(values) or issubclass(type(values[place]), _LEAVES):
            return False
        values = _inside(values[place])
    return bool(path) and path[-1] < len(values) and _is_tensor(values[path[-1]])


def _is_tensor(value: Any) -> bool:
    return issubclass(type(value), (torch.Tensor, torch.nn.Module))


def _inside(value: Any) -> Sequence[Any]:
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
