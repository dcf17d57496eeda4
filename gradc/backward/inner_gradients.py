"""A call of torch.autograd.grad inside a function that is being recorded: the engine runs the nodes of the tape in the making.

    grad_inside:      (TapeRecorder, arguments of torch.autograd.grad) -> the gradients, on the tape
    reason_for_eager: (outputs, inputs, arguments from outside, ...) -> why eager makes such a call; "" if it can be recorded

With ``create_graph`` the engine leaves behind on the tape the nodes that it leaves behind in eager; without, only the calls are
noted. What lies outside of the region it does not see: a call of the region has to check that, see ``InnerGradient``. See
Note [Higher order].
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch.autograd.graph import GradientEdge

from gradc.analysis.devices import elsewhere
from gradc.backward.formulas import differs_on_fakes
from gradc.backward.run_nodes import telling_sums
from gradc.errors import UnsupportedError
from gradc.nodes.thread_counts import counted_ahead
from gradc.tape.ctx_state import is_python
from gradc.tape.node_facts import LEAVES
from gradc.tape.record import TapeRecorder
from gradc.tape.tape import Edge, InnerGradient, Node, edge_of, op_of

Tensors = Sequence[torch.Tensor]
_to_copy = torch.ops.aten._to_copy.default


def grad_inside(tape: TapeRecorder, *args: Any, **kwargs: Any) -> Any:
    """``torch.autograd.grad`` between fake tensors of the tape.

    Raises:
        UnsupportedError: for a weight that autocast casts meanwhile, or whose copy it keeps.
    """
    outputs, inputs = (list(_tensors(values)) for values in args[:2])
    edges, nodes = _walked(outputs, _edges(inputs))
    inner = InnerGradient(_positions(tape, edges), _positions(tape, _edges(inputs)))
    tape.inner_gradients.append(inner)
    num_calls = len(tape.recorder.instructions)
    devices = elsewhere(nodes) if kwargs.get("create_graph") else ()
    with telling_sums(tape.recorder, nodes), counted_ahead(next(iter(devices), None)) as counted:
        grads = torch.autograd.grad(*args, **kwargs)
    tape.num_nodes_elsewhere += counted()
    _refuse_casts_of_weights(tape, inner, nodes, num_calls)
    return grads


def reason_for_eager(
    outputs: Tensors, inputs: Tensors, arguments: Tensors, *, makes_zeros: bool, creates_graph: bool, is_in_step: bool
) -> str:
    """See the module's docstring. ``arguments`` come from outside of the graph. ``makes_zeros``: of gradients that are None.

    ``is_in_step``: the function calls ``backward()``, too.
    """
    outside, ends = _edges(arguments), _edges(inputs)
    if len(wanted := outside & ends) > 1 and not all(node in LEAVES for node, _ in wanted):
        return "several arguments of which one has a history"
    edges, nodes = _walked(outputs, ends)
    if makes_zeros and not ends <= edges:
        return "zeros that need a gradient"
    inside = nodes - {node for node, _ in outside}
    devices = elsewhere(inside)
    if creates_graph and (len(devices) > 1 or (devices and not is_in_step)):
        return "create_graph on another device than the CPU"
    return next((reason for reason in map(_what_is_unusual, inside) if reason), "")


def nodes_between(outputs: Tensors, inputs: Tensors) -> set[Node]:
    """The nodes that a pass of the engine from ``outputs`` to ``inputs`` may run."""
    return _walked(outputs, _edges(inputs))[1]


def _what_is_unusual(node: Node) -> str:
    if node in LEAVES:
        return ""
    if is_python(node):
        return "code of an autograd.Function"
    return node.name() if differs_on_fakes(node) or differs_on_fakes(op_of(node)) else ""


def _positions(tape: TapeRecorder, edges: set[Edge]) -> frozenset[int]:
    """The primals whose gradients leave along ``edges``."""
    return frozenset(position for position, primal in enumerate(tape.primals) if primal.edge in edges)


def _refuse_casts_of_weights(tape: TapeRecorder, inner: InnerGradient, nodes: set[Node], num_calls: int) -> None:
    """Autocast keeps its copy of a weight, which then leads to the weight by one node, made when the first use was.

    That use may lie outside of the region; so a gradient for the weight must not add up from that node and others. And in the
    engine's pass no weight may be cast: its nodes have other handles of the weight here, of which no copy is kept.
    """
    for number, call in enumerate(tape.recorder.instructions):
        if call.op is not _to_copy or not tape.is_cast_by_autocast(call):
            continue
        position = tape.recorder.declared.get(tape.recorder.aliases.source_of(call.args[0].slot))
        primal = None if position is None else tape.primals[position]
        if primal is None or primal.edge is None:
            continue
        is_sum = tape.is_nested and position in inner.wanted and _num_uses(primal.edge, nodes) > 1
        if is_sum or number >= num_calls:
            raise UnsupportedError("weight that autocast casts, and its gradient inside", primal.name, call.where)


def _num_uses(edge: Edge, nodes: Iterable[Node]) -> int:
    return sum(node.next_functions.count(edge) for node in nodes)


def _walked(outputs: Sequence[torch.Tensor], ends: set[Edge]) -> tuple[set[Edge], set[Node]]:
    """The edges that lead from ``outputs`` to the ends and elsewhere, without those beyond the ends; the nodes on the way."""
    edges: set[Edge] = set()
    nodes: set[Node] = set()
    stack = list(_edges(outputs))
    while stack:
        edge = stack.pop()
        if edge[0] is not None and edge not in edges:
            edges.add(edge)
            if edge not in ends:
                nodes.add(edge[0])
                stack += edge[0].next_functions
    return edges, nodes


def _edges(tensors: Iterable[torch.Tensor]) -> set[Edge]:
    return {edge_of(tensor) for tensor in tensors if tensor.requires_grad}


def _tensors(values: Any) -> Iterator[torch.Tensor]:
    """The tensors of an argument of torch.autograd.grad: one, a sequence, or a dictionary of them."""
    several = values.values() if isinstance(values, dict) else values
    for value in (values,) if isinstance(values, (torch.Tensor, GradientEdge)) else several:
        if not isinstance(value, torch.Tensor):
            raise UnsupportedError("gradient inside of what is no tensor", type(value).__name__)
        yield value
