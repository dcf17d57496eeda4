"""Attributes of a dictionary of the user's class: while it is empty, Dynamo's guard on the order of keys leaves them out."""

from __future__ import annotations

from typing import Any

from torch._dynamo.guards import GuardBuilder

from gradc.torch_private.patches import Method, Patch
from gradc.torch_private.weaver import around


def guard_attributes_of_empty_dictionaries() -> Patch:
    """An empty dictionary has no order of keys: of one with attributes the length is guarded, and they are, as any object's."""
    return Patch(
        "guard_attributes_of_empty_dictionaries",
        "Dynamo's guard on the order of keys is done when there are none, and looks at no attribute.",
        (around(GuardBuilder, "requires_key_order_guarding", _requires_order),),
    )


def _requires_order(original: Method, self: Any, source: Any) -> bool:
    return original(self, source) and not _is_empty(self.get(source))


def _is_empty(value: Any) -> bool:
    return isinstance(value, dict) and type(value) is not dict and not dict.__len__(value)
