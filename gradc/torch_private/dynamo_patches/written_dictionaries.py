"""Dictionaries that compiled code writes into: it empties one and fills it anew, in the order in which it found the keys."""

from __future__ import annotations

from typing import Any

from torch._dynamo.guards import GuardBuilder, install_guard
from torch._dynamo.side_effects import SideEffects
from torch._dynamo.variables.dicts import ConstDictVariable

from gradc.torch_private.patches import Patch
from gradc.torch_private.weaver import after


def guard_order_of_written_dictionaries() -> Patch:
    """Code that would empty a dictionary serves those alone whose keys stand as they stood when it was made."""
    return Patch(
        "guard_order_of_written_dictionaries",
        "Dynamo fills a dictionary in the order that it had when the code was made, whatever order the one at hand has.",
        (after(SideEffects, "mutation", _mutation),),
    )


def _mutation(_: Any, self: Any, var: Any) -> None:
    output = self.output_graph_weakref()
    if output is None:
        return
    if isinstance(var, ConstDictVariable) and var.source and var.should_reconstruct_all:
        output.guard_on_key_order.add(var.source)
        install_guard(var.source.make_guard(GuardBuilder.DICT_KEYS_MATCH))
