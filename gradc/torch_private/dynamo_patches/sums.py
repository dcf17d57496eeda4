"""``sum``, which is no chain of ``+``: Python refuses strings and, from 3.12 on, corrects what floats lose by rounding.

And ``count``, which is no ``sum``: Python asks each item whether it equals, and counts.
"""

from __future__ import annotations

import builtins
import functools
import operator
import sys
from collections.abc import Iterable
from typing import Any

import torch
from torch._dynamo.variables.base import VariableTracker
from torch._dynamo.variables.functions import PolyfilledFunctionVariable, UserFunctionVariable
from torch._dynamo.variables.lists import ListVariable, TupleVariable

from gradc.torch_private.dynamo_patches.ends import end_graph
from gradc.torch_private.dynamo_patches.sets import end_where_order_counts
from gradc.torch_private.patches import Method, Patch
from gradc.torch_private.weaver import around

CORRECTS_ROUNDING = sys.version_info >= (3, 12)
_NUMBERS = (bool, int, float, complex)


def add_up_as_python_does() -> Patch:
    """Numbers at the front go through Python's ``sum``, where they are constants; where they change, the graph ends."""
    return Patch(
        "add_up_as_python_does",
        "Dynamo has sum as a chain of +: of floats it rounds otherwise than Python from 3.12 on, and it takes strings.",
        (around(PolyfilledFunctionVariable, "call_function", _call),),
    )


def _call(original: Method, self: Any, tx: Any, args: Any, kwargs: Any) -> Any:
    if self.fn is operator.countOf and _has_tensor(args):
        end_graph("count of tensors", "Python looks at the values.")
    if self.fn is not builtins.sum or not args:
        return original(self, tx, args, kwargs)
    end_where_order_counts(args[0], tx)
    start = args[1] if len(args) > 1 else kwargs.get("start")
    if start is not None and issubclass(start.python_type(), (str, bytes, bytearray)):
        end_graph("sum of strings", "Python raises.")
    if not CORRECTS_ROUNDING or all(each.is_python_constant() for each in (*args, *kwargs.values())):
        return original(self, tx, args, kwargs)
    kinds = _kinds_of(args[0]) if start is None else set()
    if kinds and kinds <= {int, bool}:
        return original(self, tx, args, kwargs)
    if kinds and kinds <= {*_NUMBERS}:
        end_graph("sum of floats that change", "Python corrects what was rounded off.")
    return tx.inline_user_function_return(UserFunctionVariable(_sum), list(args), dict(kwargs))


def _has_tensor(args: Iterable[VariableTracker]) -> bool:
    """Among them, or among the items of those that are lists or tuples."""
    return any(arg.realize().is_tensor() or any(issubclass(kind, torch.Tensor) for kind in _kinds_of(arg)) for arg in args)


def _kinds_of(numbers: VariableTracker) -> set[type]:
    """The types of the items of a list or tuple; none, if it is another iterable."""
    items = numbers.items if isinstance(numbers, (ListVariable, TupleVariable)) else ()
    return {item.realize().python_type() for item in items}


def traced(function: Any) -> Any:
    """The function, as one of no file: those of gradc's files Dynamo leaves alone (``calls.skip_frames_of``)."""
    function.__code__ = function.__code__.replace(co_filename=f"<gradc: {function.__name__}>")
    return function


@traced
def _sum(iterable: Iterable[Any], /, start: Any = 0) -> Any:
    """What Dynamo traces in place of ``sum``: numbers, up to the first item that is none, are a list that Python adds up."""
    if type(start) not in _NUMBERS:
        return functools.reduce(operator.add, iterable, start)
    iterator, numbers = iter(iterable), [start]
    for item in iterator:
        if type(item) not in _NUMBERS:
            return functools.reduce(operator.add, iterator, builtins.sum(numbers) + item)
        numbers.append(item)
    return builtins.sum(numbers)
