"""What an operator gives for types that Dynamo has no model of: bytearrays and arrays, which join at ``+``."""

from __future__ import annotations

import operator
from typing import Any

from torch._dynamo.variables.builtin import BuiltinVariable

from gradc.torch_private.dynamo_patches.ends import end_graph
from gradc.torch_private.patches import Patch
from gradc.torch_private.weaver import after

_NAMES = ("add", "sub", "mul", "matmul", "truediv", "floordiv", "mod", "pow", "and", "or", "xor", "lshift", "rshift")
_OPERATORS = {getattr(operator, f"__{before}{name}__") for name in _NAMES for before in ("", "i")}


def give_no_notimplemented() -> Patch:
    """End the graph at an operator for which Dynamo has found nobody: Python asks more, or raises."""
    return Patch(
        "give_no_notimplemented",
        "The sum of two bytearrays is NotImplemented for Dynamo.",
        (after(BuiltinVariable, "call_function", _call),),
    )


def _call(result: Any, self: Any, tx: Any, args: Any, kwargs: Any) -> Any:
    if self.fn in _OPERATORS and result.is_constant_match(NotImplemented):
        end_graph("operator of types that are not traced", "Python itself knows what they give.", self.fn.__name__)
    return result
