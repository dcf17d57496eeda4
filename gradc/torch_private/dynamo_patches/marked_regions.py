"""``torch.compiler.nested_compile_region``: a hint for compilers that a function is called often, and nothing else."""

from __future__ import annotations

from typing import Any

from torch._dynamo.variables.higher_order_ops import InvokeSubgraphHigherOrderVariable

from gradc.torch_private.patches import Patch
from gradc.torch_private.weaver import instead


def trace_through_marked_regions() -> Patch:
    """Trace into the function as into any other. gradc makes one compiled part of all that runs between two graph breaks."""
    return Patch(
        "trace_through_marked_regions",
        "Dynamo makes an operator of a marked region: what changes outside is not seen, and a graph break inside is an error.",
        (instead(InvokeSubgraphHigherOrderVariable, "call_function", _call_function),),
    )


def _call_function(self: Any, tx: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    return args[0].call_function(tx, list(args[1:]), kwargs)
