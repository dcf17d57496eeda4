"""Where an argument is written into while gradients are recorded, Dynamo's graph ends: eager gives it its new history."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from typing import Any

import torch
from torch._dynamo import utils

from gradc.torch_private.dynamo_patches.ends import end_graph
from gradc.torch_private.patches import Method, Patch
from gradc.torch_private.weaver import around

_WRITERS = {operator.setitem, *(getattr(operator, name) for name in operator.__all__ if name.startswith("i"))}
_KEYWORDS = {operator.and_, operator.or_, operator.not_, operator.is_}  # which have their names for that
_Histories = list[tuple[torch.Tensor, bool, Any]]


def break_graph_where_arguments_are_written() -> Patch:
    """End the graph at a call that gives a tensor from outside another history: what comes before and after stays compiled.

    Under ``fullgraph=True`` the call stays in the graph, which is refused with this reason.
    """
    return Patch(
        "break_graph_where_arguments_are_written",
        "A region returns values; the history of a tensor that was there before changes in eager alone.",
        (around(utils, "run_node", _run_node),),
    )


def _run_node(original: Method, tracer: Any, node: Any, *args: Any, **kwargs: Any) -> Any:
    if not may_write(node) or not torch.is_grad_enabled() or not _may_break(tracer):
        return original(tracer, node, *args, **kwargs)
    before = _histories(tracer)
    result = original(tracer, node, *args, **kwargs)
    if _has_changed(before):
        explanation = "gradc leaves the write to eager, between what comes before and what comes after."
        name = getattr(node.target, "__name__", str(node.target))
        end_graph("argument written into", explanation, name)
    return result


def _may_break(tracer: Any) -> bool:
    root = getattr(tracer, "root_tx", None)
    return root is not None and not root.one_graph


def may_write(node: Any) -> bool:
    """By its name, or by what it is told. What writes without telling so, a batch norm, records no gradients of it."""
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    if node.target in _KEYWORDS:
        return False
    is_named_so = node.target in _WRITERS or name.startswith("__i") or (name.endswith("_") and not name.endswith("__"))
    is_told_so = "out" in node.kwargs or any(value is True for value in (*node.args, *node.kwargs.values()))
    return node.op in ("call_function", "call_method") and (is_named_so or is_told_so)


def _histories(tracer: Any) -> _Histories:
    return [(fake, fake.requires_grad, fake.grad_fn) for fake in _arguments(tracer)]


def _arguments(tracer: Any) -> Iterator[torch.Tensor]:
    for node in tracer.graph.find_nodes(op="placeholder"):
        value = node.meta.get("example_value")
        if isinstance(value, torch.Tensor):
            yield value


def _has_changed(before: _Histories) -> bool:
    return any(fake.requires_grad != required or fake.grad_fn is not node for fake, required, node in before)
