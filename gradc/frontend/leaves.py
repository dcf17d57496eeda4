"""Leaves that a function makes first, as by ``x = x.clone().requires_grad_()``: made eagerly, they are inputs of its graph.

    begins_with_leaves: Dynamo's graph -> True if what makes them are its first calls
    lift_leaves:        graph -> graph without these calls, Leaves        what they make are its last inputs
    Leaves:             inputs of the first -> inputs of the second

A leaf has a gradient of its own, which a hook may hear and ``autograd.grad`` may ask for: as an input of a region it is what it
is in eager. It is made as the user wrote it, draws of random numbers included, and nothing has run before.
"""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.fx

from gradc import native
from gradc.frontend.graph import placeholders
from gradc.torch_private.autograd import storage_key
from gradc.torch_private.dynamo import ALLOW_REQUIRES_GRAD, code_of, set_eval_frame
from gradc.torch_private.dynamo_patches.leaves import FACTORIES
from gradc.torch_private.fakes import stand_in_for
from gradc.torch_private.subclasses import is_subclass

Nodes = Sequence[torch.fx.Node]
_MAKE_LEAF = "requires_grad_"
_METHODS = {
    "clone", "contiguous", "detach", "double", "expand", "flatten", "float", "repeat", "reshape", "squeeze", "to", "unsqueeze",
    "view",
}  # fmt: skip
_FUNCTIONS = {
    operator.add, operator.getitem, operator.mul, operator.neg, operator.sub, operator.truediv, torch.clone, torch.detach,
    torch.full_like, *FACTORIES,
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Leaves:
    """See the module's docstring. ``make`` is None where there are none.

    Attributes:
        examples: tensors laid out as what ``make`` makes, to trace with.
        are_shared: for each input, whether it may share memory with another one; () where there are no leaves.
    """

    make: Callable[..., tuple[Any, ...]] | None = None
    examples: tuple[torch.Tensor, ...] = ()
    are_shared: tuple[bool, ...] = ()

    def given_to(self, compiled: Callable[..., Any]) -> Callable[..., Any]:
        """``compiled``, for the inputs of the graph that Dynamo captured."""
        make = self.make
        if make is None:
            return compiled
        if native.is_built():
            return native.extension.with_leaves(make, compiled, set_eval_frame)
        return torch.compiler.disable(lambda *inputs: compiled(*inputs, *make(*inputs)))


def begins_with_leaves(graph: torch.fx.Graph) -> bool:
    """See the module's docstring. False also where no leaf is made."""
    return bool(_first_calls(graph))


def lift_leaves(graph: torch.fx.GraphModule) -> tuple[torch.fx.GraphModule, Leaves]:
    """See the module's docstring. The graph itself, where its first calls make no leaves."""
    first = _first_calls(graph.graph)
    if not first:
        return graph, Leaves()
    inputs = placeholders(graph)
    made = [node for node in first if not node.users.keys() <= set(first)]
    examples = tuple(stand_in_for(node.meta["example_value"]) for node in made)
    return _rest_of(graph, first, made), Leaves(_maker(graph, inputs, first, made), examples, _are_shared([*inputs, *made]))


def _first_calls(graph: torch.fx.Graph) -> list[torch.fx.Node]:
    """The calls up to the last that makes a leaf; [] if there is none, or if one of them is unusual."""
    calls = [node for node in graph.nodes if node.op not in ("placeholder", "output")]
    last = max((place for place, node in enumerate(calls) if _makes_leaf(node)), default=-1)
    first = calls[: last + 1]
    leaves = {node.args[0] for node in first if _makes_leaf(node)}
    return first if all(_is_usual(node, leaves) for node in first) else []


def _makes_leaf(node: torch.fx.Node) -> bool:
    return node.op == "call_method" and node.target == _MAKE_LEAF


def _is_usual(node: torch.fx.Node, leaves: set[Any]) -> bool:
    """True for a call that makes a tensor without history, or a leaf of one, whatever state of torch's it runs in."""
    if _makes_leaf(node):
        return node.all_input_nodes[0].op != "placeholder" and len(node.args) == 1 and not node.kwargs and not node.users
    if node.target is ALLOW_REQUIRES_GRAD:
        return True
    value = node.meta.get("example_value")
    if node.target not in (_METHODS if node.op == "call_method" else _FUNCTIONS) or not isinstance(value, torch.Tensor):
        return False
    if any(is_subclass(getattr(given.meta.get("grapharg"), "example", None)) for given in node.all_input_nodes):
        return False  # whose class would have a say in what is made
    return leaves.isdisjoint(node.all_input_nodes) and value.requires_grad == (node in leaves)


def _are_shared(nodes: Nodes) -> tuple[bool, ...]:
    values = [node.meta.get("example_value") for node in nodes]
    keys = [storage_key(value) if isinstance(value, torch.Tensor) else None for value in values]
    return tuple(key is not None and keys.count(key) > 1 for key in keys)


def _maker(graph: torch.fx.GraphModule, inputs: Nodes, first: Nodes, made: Nodes) -> Callable[..., tuple[Any, ...]]:
    """The first calls alone, without what Dynamo puts around them: eager asks whether a leaf may be made here."""
    nodes, copies = torch.fx.Graph(), dict[torch.fx.Node, torch.fx.Node]()
    for node in [*inputs, *(node for node in first if node.target is not ALLOW_REQUIRES_GRAD)]:
        copies[node] = nodes.node_copy(node, copies.__getitem__)
    nodes.output(tuple(copies[node] for node in made))
    return code_of(torch.fx.GraphModule(graph, nodes))


def _rest_of(graph: torch.fx.GraphModule, first: Nodes, made: Nodes) -> torch.fx.GraphModule:
    nodes, copies = torch.fx.Graph(), dict[torch.fx.Node, torch.fx.Node]()
    for node in placeholders(graph):
        copies[node] = nodes.node_copy(node)
    for node in made:
        copies[node] = nodes.placeholder(node.name)
        copies[node].meta = dict(node.meta)
    for node in graph.graph.nodes:
        if node not in copies and node not in first:
            copies[node] = nodes.node_copy(node, copies.__getitem__)
    return torch.fx.GraphModule(graph, nodes)
