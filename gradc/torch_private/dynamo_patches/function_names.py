"""The names of a function, which a decorator may have changed: torch 2.15 takes them from its code, where they never change."""

from __future__ import annotations

from typing import Any

from torch._dynamo.source import AttrSource
from torch._dynamo.variables.base import VariableTracker
from torch._dynamo.variables.functions import BaseUserFunctionVariable, UserFunctionVariable, UserMethodVariable

from gradc.torch_private.dynamo_names import IS_BEFORE_2_15
from gradc.torch_private.ours import is_compiling_for_gradc
from gradc.torch_private.patches import Replace

_NAMES = {"tp_getset": ("__name__", "__qualname__"), "tp_members": ("__doc__", "__module__")}


def read_names_from_functions() -> tuple[Replace, ...]:
    """``__name__`` and the like are what the function says, as ``functools.wraps`` left it."""
    if IS_BEFORE_2_15:
        return ()
    tables = ((getattr(BaseUserFunctionVariable, table), names) for table, names in _NAMES.items())
    return tuple(Replace(table, name, _reader(name)) for table, names in tables for name in names)


def _reader(name: str) -> Any:
    def make(entry: Any) -> Any:
        def get(self: Any, tx: Any) -> Any:
            is_real = isinstance(self, (UserFunctionVariable, UserMethodVariable))
            is_written = tx.output.side_effects.has_pending_mutation_of_attr(self, name)
            if not is_real or is_written or not is_compiling_for_gradc():
                return entry.getter(self, tx)
            return VariableTracker.build(tx, getattr(self.get_function(), name), self.source and AttrSource(self.source, name))

        return type("Read", (type(entry),), {})(get, entry.setter)  # a class with attributes, for what the patch notes

    return make
