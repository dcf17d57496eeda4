"""The names of a function, which a decorator may have changed: torch 2.15 takes them from its code, where they never change."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch._dynamo.source import AttrSource
from torch._dynamo.variables.base import VariableTracker
from torch._dynamo.variables.functions import BaseUserFunctionVariable, UserFunctionVariable, UserMethodVariable

from gradc.torch_private.dynamo_names import IS_BEFORE_2_15
from gradc.torch_private.patches import Method
from gradc.torch_private.weaver import Rule, around

_NAMES = {"tp_getset": ("__name__", "__qualname__"), "tp_members": ("__doc__", "__module__")}


def read_names_from_functions() -> tuple[Rule, ...]:
    """``__name__`` and the like are what the function says, as ``functools.wraps`` left it."""
    if IS_BEFORE_2_15:
        return ()
    tables = ((getattr(BaseUserFunctionVariable, table), names) for table, names in _NAMES.items())
    return tuple(around(table, name, _reader(name), form=_getter) for table, names in tables for name in names)


def _reader(name: str) -> Method:
    def read(original: Method, self: Any, tx: Any) -> Any:
        is_real = isinstance(self, (UserFunctionVariable, UserMethodVariable))
        if not is_real or tx.output.side_effects.has_pending_mutation_of_attr(self, name):
            return original(self, tx)
        return VariableTracker.build(tx, getattr(self.get_function(), name), self.source and AttrSource(self.source, name))

    return read


def _getter(entry: Any) -> tuple[Method, Callable[[Method], Any]]:
    return entry.getter, lambda get: type("Read", (type(entry),), {})(get, entry.setter)  # with attributes, for the weaver
