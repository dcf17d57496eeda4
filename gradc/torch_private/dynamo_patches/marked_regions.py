"""``torch.compiler.nested_compile_region``: a hint for compilers that a function is called often, and nothing else."""

from __future__ import annotations

import functools
from typing import Any

from torch._dynamo.variables.higher_order_ops import InvokeSubgraphHigherOrderVariable

from gradc.torch_private.patches import IsOurs, Method, Patch, Replace


def trace_through_marked_regions(is_ours: IsOurs) -> Patch:
    """Trace into the function as into any other. gradc makes one compiled part of all that runs between two graph breaks."""

    def make(original: Method) -> Method:
        @functools.wraps(original)
        def call_function(self: Any, tx: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
            if is_ours(tx.output.compiler_fn):
                return args[0].call_function(tx, list(args[1:]), kwargs)
            return original(self, tx, args, kwargs)

        return call_function

    return Patch(
        "trace_through_marked_regions",
        "Dynamo makes an operator of a marked region: what changes outside is not seen, and a graph break inside is an error.",
        (Replace(InvokeSubgraphHigherOrderVariable, "call_function", make),),
    )
