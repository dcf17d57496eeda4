"""An int of a module that changes from call to call (a count of steps) is an input of the graph, as a changing argument is.

Dynamo takes the ints of modules for constants, compiles anew for each value, and gives up after eight.
"""

from __future__ import annotations

import functools
import weakref
from typing import Any

import torch
from torch._dynamo.source import AttrSource
from torch._dynamo.variables.builder import VariableBuilder
from torch.fx.experimental.symbolic_shapes import DimDynamic

from gradc.torch_private.patches import IsOurs, Method, Patch, Replace

# What each int of a module was when a graph was made for it; None once it was another.
_seen: weakref.WeakKeyDictionary[torch.nn.Module, dict[str, int | None]] = weakref.WeakKeyDictionary()


def take_changing_ints(is_ours: IsOurs) -> Patch:
    """Make an int of a module an input of the graph once it was another when a graph was made before, of the same module."""

    def make(original: Method) -> Method:
        @functools.wraps(original)
        def wrap(self: Any, value: Any) -> Any:
            if type(value) is int and is_ours(self.tx.output.compiler_fn) and _has_changed(self, value):
                return self.wrap_symint(value, dynamism=DimDynamic.DYNAMIC)
            return original(self, value)

        return wrap

    return Patch(
        "take_changing_ints",
        "Dynamo takes the ints of modules for constants: a count of steps is compiled eight times, and then no more.",
        (Replace(VariableBuilder, "wrap_literal", make),),
    )


def _has_changed(builder: Any, value: int) -> bool:
    source = builder.source
    if not isinstance(source, AttrSource) or not source.guard_source.is_unspecialized_nn_module():
        return False
    try:
        module = builder.tx.output.resolve_source_value(source.base)
    except Exception:  # it is no more what it was when the frame began
        return False
    if not isinstance(module, torch.nn.Module):
        return False
    seen = _seen.setdefault(module, {})
    if seen.setdefault(source.member, value) != value:
        seen[source.member] = None
    return seen[source.member] is None
