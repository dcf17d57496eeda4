"""Elements that a function picks out of a tensor and does not use: an index may be out of bounds, and eager says so."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch._dynamo.output_graph import OutputGraph

from gradc.torch_private.patches import Method, Patch
from gradc.torch_private.weaver import around


def keep_unread_elements() -> Patch:
    """Leave ``x[index]`` in graphs that read nothing of it. If that is a view alone, it goes later."""
    return Patch(
        "keep_unread_elements",
        "Dynamo takes x[index] for a call that only looks something up, and drops it where nobody reads the result.",
        (around(OutputGraph, "remove_node", _remove),),
    )


def _remove(original: Method, self: Any, node: torch.fx.Node) -> None:
    if not _is_of_a_tensor(node):
        original(self, node)


def _is_of_a_tensor(node: torch.fx.Node) -> bool:
    if node.target is not operator.getitem or not isinstance(node.args[0], torch.fx.Node):
        return False
    return isinstance(node.args[0].meta.get("example_value"), torch.Tensor)
