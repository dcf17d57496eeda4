"""Lists of tuples that the first items of the tuples put in order: ``sorted(losses.items())``."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from torch._dynamo.variables.base import VariableTracker
from torch._dynamo.variables.constant import ConstantVariable
from torch._dynamo.variables.lists import ListVariable, TupleVariable

from gradc.torch_private.patches import Method, Patch
from gradc.torch_private.weaver import around

_COMPARED = (bool, int, float, str, bytes)


def sort_by_what_decides() -> Patch:
    """Compare tuples, and lists, as Python does: up to the first items that differ. What stands behind may be a tensor."""
    return Patch(
        "sort_by_what_decides",
        "Dynamo sorts constants alone, and ends the graph at tuples of a name and a tensor, whose names decide.",
        (around(ListVariable, "call_method", _call_method),),
    )


def _call_method(original: Method, self: Any, tx: Any, name: str, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    if name == "sort" and not args and self.is_mutable() and (items := _sorted(self.items, **kwargs)) is not None:
        tx.output.side_effects.mutation(self)
        self.items[:] = items
        return ConstantVariable.create(None)
    return original(self, tx, name, args, kwargs)


class _Undecided(Exception):
    """By constants."""


def _sorted(
    items: list[VariableTracker], key: VariableTracker | None = None, reverse: VariableTracker | None = None, **others: Any
) -> list[VariableTracker] | None:
    """None where Dynamo sorts itself, or something that is no constant decides."""
    given = [each for each in (key, reverse) if each is not None]
    if others or not all(each.is_python_constant() for each in given) or (key is not None and not key.is_constant_none()):
        return None
    tuples = [item.realize() for item in items]
    if not tuples or not all(type(each) is type(tuples[0]) in (TupleVariable, ListVariable) for each in tuples):
        return None
    try:
        return sorted(tuples, key=functools.cmp_to_key(_compare), reverse=bool(reverse and reverse.as_python_constant()))
    except (_Undecided, TypeError):
        return None


def _compare(one: Any, other: Any) -> int:
    for a, b in zip(map(_constant, one.items), map(_constant, other.items), strict=False):
        if a != b:
            return -1 if a < b else 1
    return len(one.items) - len(other.items)


def _constant(item: VariableTracker) -> Any:
    item = item.realize()
    value = item.as_python_constant() if item.is_python_constant() else None
    if type(value) not in _COMPARED or value != value:
        raise _Undecided
    return value
