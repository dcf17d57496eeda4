"""What Dynamo does at a method of a tensor, ``x.add_(y)``: a method of its variable, since torch 2.14 in a table as well.

The table holds the functions themselves: who replaced the variable's method alone would change nothing, and not notice.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch._dynamo.variables import base
from torch._dynamo.variables.tensor import TensorVariable

from gradc.torch_private.dynamo_names import IS_BEFORE_2_14
from gradc.torch_private.patches import Method, Replace

_Entry: Any = getattr(base, "Method", object)


class _NewEntry(_Entry):
    """An entry with attributes, where the patch notes what it replaced."""


def replace_tensor_method(name: str, make: Callable[[Any], Method]) -> tuple[Replace, ...]:
    """Replace what happens at ``x.name(...)``; ``make`` gets None where Dynamo makes a call in the graph of it."""
    of_variable = Replace(TensorVariable, f"method_{name}", make, may_be_missing=True)
    if IS_BEFORE_2_14:
        return (of_variable,)

    def make_entry(original: Any) -> Any:
        return _NewEntry(make(original.handler if original is not None else None))

    table: dict[str, Any] = getattr(TensorVariable, "tp_methods")  # noqa: B009  not there in 2.13
    return of_variable, Replace(table, name, make_entry, may_be_missing=True)
