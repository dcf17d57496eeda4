"""A generator that was made outside of compiled code: Python runs it, and it goes on from where it is."""

from __future__ import annotations

import types
from typing import Any

from torch._dynamo.variables.builder import VariableBuilder

from gradc.torch_private.patches import Method, Patch
from gradc.torch_private.weaver import around


def leave_generators_to_python() -> Patch:
    """A generator that has not begun is an object like one that has, of which Dynamo traces nothing."""
    return Patch(
        "leave_generators_to_python",
        "Since torch 2.14, Dynamo traces one that has not begun from its start, as often as it compiles; it never moves.",
        (around(VariableBuilder, "_wrap", _wrap),),
    )


def _wrap(original: Method, self: Any, value: Any) -> Any:
    if type(value) is types.GeneratorType:
        return self.wrap_user_defined(value)
    return original(self, value)
