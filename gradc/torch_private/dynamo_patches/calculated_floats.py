"""A float that is calculated from sizes and ints that change is calculated as Python does it, operation by operation."""

from __future__ import annotations

from typing import Any

import torch
import torch.fx
from torch._dynamo.variables.tensor import SymNodeVariable

from gradc.torch_private.dynamo_patches.ends import end_graph
from gradc.torch_private.patches import Patch
from gradc.torch_private.weaver import before


def leave_calculated_floats_to_python() -> Patch:
    """End the graph where Dynamo would calculate on with a symbol for a float: of several operations it makes one expression.

    A first operation, on ints, rounds as Python's does.
    """
    return Patch(
        "leave_calculated_floats_to_python",
        "Dynamo simplifies what several operations make of a symbol, and rounds otherwise.",
        (before(SymNodeVariable, "__init__", _init),),
    )


def _init(self: Any, proxy: Any, sym_num: Any, **kwargs: Any) -> None:
    if isinstance(sym_num, torch.SymFloat) and _is_calculated_from_floats(proxy.node):
        end_graph(
            "float calculated from a number that changes",
            "gradc leaves to Python what it calculates step by step: it rounds at each.",
            proxy,
        )


def _is_calculated_from_floats(node: torch.fx.Node) -> bool:
    inputs = (argument.meta.get("example_value") for argument in node.all_input_nodes)
    return node.op == "call_function" and any(isinstance(value, torch.SymFloat) for value in inputs)
