"""What Dynamo does at a method of a tensor, ``x.add_(y)``: a method of its variable, since torch 2.14 in a table as well.

The table holds the functions themselves: who replaced the variable's method alone would change nothing, and not notice.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch._dynamo.variables import base
from torch._dynamo.variables.tensor import TensorVariable

from gradc.torch_private.dynamo_names import IS_BEFORE_2_14
from gradc.torch_private.patches import Method
from gradc.torch_private.weaver import Rule, plain

_Entry: Any = getattr(base, "Method", object)


class _NewEntry(_Entry):
    """An entry with attributes, where the weaver notes what it replaced."""


def tensor_method(kind: Callable[..., Rule], name: str, rule: Method) -> tuple[Rule, ...]:
    """The rules, of a kind of ``weaver``'s, at ``x.name(...)``; Dynamo may have nothing there, and make a call in the graph."""
    of_variable = kind(TensorVariable, f"method_{name}", rule, may_be_missing=True)
    if IS_BEFORE_2_14:
        return (of_variable,)
    table: dict[str, Any] = getattr(TensorVariable, "tp_methods")  # noqa: B009  not there in 2.13
    return of_variable, kind(table, name, rule, may_be_missing=True, form=_entry)


def _entry(original: Any) -> tuple[Method, Callable[[Method], Any]]:
    return plain(getattr(original, "handler", None))[0], _NewEntry
