"""Leaves that a function makes, by ``x.clone().requires_grad_()``, and unmakes."""

from __future__ import annotations

import functools
from typing import Any

from gradc.torch_private.dynamo_patches.ends import end_graph
from gradc.torch_private.dynamo_patches.tensor_methods import replace_tensor_method
from gradc.torch_private.patches import IsOurs, Method, Patch


def unmake_leaves_eagerly(is_ours: IsOurs) -> Patch:
    """End the graph at ``requires_grad_(False)`` of what requires a gradient."""

    def make(original: Method) -> Method:
        @functools.wraps(original)
        def method(self: Any, tx: Any, requires_grad: Any = True) -> Any:
            is_wanted = requires_grad if isinstance(requires_grad, bool) else requires_grad.as_python_constant()
            if is_ours(tx.output.compiler_fn) and not is_wanted and self.as_proxy().node.meta["example_value"].requires_grad:
                end_graph("requires_grad_(False)", "A graph has no call that makes a leaf one that requires no gradient.")
            return original(self, tx, requires_grad)

        return method

    return Patch(
        "unmake_leaves_eagerly",
        "Of requires_grad_(False) Dynamo leaves the False out: in its graph the tensor still requires a gradient.",
        replace_tensor_method("requires_grad_", make),
    )
