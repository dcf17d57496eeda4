"""Tuples that their first items put in order, ``sorted(losses.items())``, and ``min`` and ``max`` by a key."""

from __future__ import annotations

import functools
import operator
from collections.abc import Sequence
from typing import Any

from torch._dynamo.variables.base import VariableTracker
from torch._dynamo.variables.builtin import BuiltinVariable
from torch._dynamo.variables.constant import ConstantVariable
from torch._dynamo.variables.functions import UserFunctionVariable
from torch._dynamo.variables.lists import ListVariable, TupleVariable

from gradc.torch_private.dynamo_patches.sums import traced
from gradc.torch_private.patches import Method, Patch
from gradc.torch_private.weaver import around

_COMPARED = (bool, int, float, str, bytes)


def sort_by_what_decides() -> Patch:
    """Compare tuples, and lists, as Python does: up to the first items that differ. What stands behind may be a tensor."""
    return Patch(
        "sort_by_what_decides",
        "Dynamo sorts constants alone: tuples of a name and a tensor, where names decide, end the graph; so do keys of min.",
        (
            around(ListVariable, "call_method", _call_method),
            around(BuiltinVariable, "_call_min_max_seq", _call_min_max_seq),
            around(BuiltinVariable, "call_function", _call_function),
        ),
    )


def _call_method(original: Method, self: Any, tx: Any, name: str, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    if name == "sort" and not args and self.is_mutable() and (items := _sorted(self.items, **kwargs)) is not None:
        tx.output.side_effects.mutation(self)
        self.items[:] = items
        return ConstantVariable.create(None)
    return original(self, tx, name, args, kwargs)


def _call_min_max_seq(original: Method, self: Any, tx: Any, items: list[VariableTracker]) -> Any:
    in_order = _sorted(items, reverse=ConstantVariable.create(self.fn is max))
    return in_order[0] if in_order else original(self, tx, items)


def _call_function(original: Method, self: Any, tx: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    key = kwargs.get("key")
    if self.fn not in (min, max) or not args or key is None or key.is_constant_none() or kwargs.keys() - {"key", "default"}:
        return original(self, tx, args, kwargs)
    is_better = BuiltinVariable(operator.gt if self.fn is max else operator.lt)
    items = args[0] if len(args) == 1 else TupleVariable([*args])
    default = [kwargs["default"]] if "default" in kwargs else []
    return UserFunctionVariable(_best).call_function(tx, [self, is_better, items, key, *default], {})


@traced
def _best(extreme: Any, is_better: Any, items: Any, key: Any, *default: Any) -> Any:
    best = best_key = None
    is_first = True
    for item in items:
        item_key = key(item)
        if is_first or is_better(item_key, best_key):
            best, best_key, is_first = item, item_key, False
    if is_first:
        return default[0] if default else extreme(())
    return best


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
