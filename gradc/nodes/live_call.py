"""One call of a compiled region: the live autograd nodes and the outputs that it makes of the forward's values.

    Call(region, primals): run(forward) -> the live nodes; then output(how it is made) -> one output of the region

Which tape edge, segment and value belong together the region says; see ``HasNodes``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import torch

from gradc.analysis.order import LiveNode, Made
from gradc.analysis.outputs import (
    AliasOfInput,
    AliasOfIntermediate,
    AliasUsedInside,
    Constant,
    InputItself,
    Output,
    Value,
)
from gradc.analysis.segments import Segment
from gradc.ir.sizes import Sizes
from gradc.ir.values import Sym
from gradc.nodes.python_node import SegmentFunction
from gradc.tape.tape import Edge, Tape
from gradc.tape.views import as_view_of
from gradc.torch_private.autograd import input_metadata, is_view, number_nodes, put_in_order, sequence_nr


@dataclasses.dataclass(frozen=True)
class Place:
    """Where a call finds a saved tensor: among its primals, or among the values of the forward."""

    is_primal: bool
    position: int


class HasValues(Protocol):
    """Which value belongs to what.

    Attributes:
        of_edge: tape edge -> position of the value it belongs to.
        of_saved: number of a saved tensor -> where it is.
        transposed: positions of the primals whose transposes are values behind those of the forward.
    """

    @property
    def of_edge(self) -> Mapping[Edge, int]: ...
    @property
    def of_saved(self) -> Mapping[int, Place]: ...
    @property
    def transposed(self) -> tuple[int, ...]: ...


class HasNodes(Protocol):
    """What a call reads of its region. ``backwards.grads`` is what a live node runs."""

    @property
    def tape(self) -> Tape: ...
    @property
    def segments(self) -> tuple[Segment, ...]: ...
    @property
    def returned(self) -> HasValues: ...
    @property
    def backwards(self) -> Any: ...


class Call:
    """One call of a region: the tensors its outputs and live nodes are made of. Dropped when the call returns."""

    def __init__(self, region: HasNodes, primals: list[Any]) -> None:
        self.region, self.primals = region, primals
        self.values: list[Any] = []
        self.sizes = Sizes({symbol.name: self._size(*at) for symbol, at in region.tape.program.symbols.items()})
        self._entries: dict[tuple[int, int], torch.Tensor] = {}
        self._live: dict[int, torch.Tensor] = {}
        self._aliases: dict[int, torch.Tensor] = {}

    def run(self, forward: Callable[[list[Any]], list[Any]]) -> list[Any]:
        """Run the forward, and build the live nodes in Python. They are returned."""
        # A view made without gradient recording would refuse in-place use; a detached handle is no view.
        values = [*forward(list(self.primals)), *(self.primals[i].detach().t() for i in self.region.returned.transposed)]
        self.values = [value.detach() if is_view(value) else value for value in values]
        with torch.enable_grad():  # the tape knows which parts recorded gradients, whatever is ambient now
            for segment in self.region.segments:
                self.attach(segment)
        return self.nodes_of_segments()

    def nodes_of_segments(self) -> list[Any]:
        """The live nodes that were built in Python."""
        return [self._entries[segment.number, 0].grad_fn for segment in self.region.segments]

    def nodes_of_primals(self, order: Sequence[LiveNode]) -> list[Any]:
        """The nodes of the primals in the live order; None for the others there."""
        return [self.primals[item.number].grad_fn if item.made is Made.PRIMAL else None for item in order]

    def put_in_order(
        self,
        order: Sequence[LiveNode],
        of_primals: list[Any],
        segments: Any,
        outputs: Sequence[Any],
        start: int,
        *,
        is_numbered: bool = False,
    ) -> None:
        """Deal the sequence numbers of the nodes that this call made, from ``start`` on, anew in the live order.

        ``is_numbered``: each the number that eager's node has.
        """
        nodes = list(of_primals)
        for position, item in enumerate(order):
            if item.made is Made.SEGMENT:
                nodes[position] = segments[item.number]
            elif item.made is Made.OUTPUT:
                nodes[position] = _history(outputs[item.number], item.depth)
        own = [(node, item) for node, item in zip(nodes, order) if node is not None and sequence_nr(node) >= start]
        if is_numbered:
            number_nodes((node, start + item.offset) for node, item in own)
        else:
            put_in_order([node for node, _ in own])

    def _size(self, kind: str, position: int, dimension: int) -> int:
        source = self.primals[position]
        return source if kind == "int" else getattr(source, kind)(dimension)

    def attach(self, segment: Segment) -> None:
        """Build the live node of one segment, after those that it leads to."""
        edges = []
        for exit_ in segment.exits:
            if exit_.primal is not None:
                edges.append(self.primals[exit_.primal])
            elif exit_.entry is not None:
                edges.append(self._entries[exit_.entry])
        outputs = SegmentFunction.apply(self, segment, *edges)
        for number, (edge, output) in enumerate(zip(segment.entries, outputs, strict=True)):
            self._entries[segment.number, number] = output
            position = self.region.returned.of_edge.get(edge)
            if position is not None:
                self._live[position] = output

    def entry_value(self, segment: Segment, number: int) -> torch.Tensor:
        """What stands for one entry of a live node: the value itself, or a tensor that only has its metadata."""
        node, place = segment.entries[number]
        position = self.region.returned.of_edge.get((node, place))
        if position is not None:
            return self.values[position]
        meta = input_metadata(node, place)
        size = [dim if isinstance(dim, int) else self.sizes(Sym(dim.node.expr)) for dim in meta.shape]
        return torch.empty_strided(size, [0] * len(size), dtype=meta.dtype, device=meta.device)

    def saved_value(self, index: int) -> torch.Tensor | None:
        """A saved tensor as eager would have packed it: in the live graph if it needs a gradient; None for a spoilt one."""
        if self.region.tape.saved[index].spoilt:
            return None
        place = self.region.returned.of_saved[index]
        if place.is_primal:
            return self.primals[place.position]
        if self.region.tape.saved[index].edge is None:
            return self.values[place.position]
        return self.live(place.position)

    def live(self, position: int) -> torch.Tensor:
        """A value as the output of its live node; the bare value, if it has none."""
        return self._live.get(position, self.values[position])

    def output(self, kind: Output) -> Any:
        """One output of the region, as ``analysis.outputs.analyse_outputs`` says it is made."""
        match kind:
            case Constant(value):
                return self.sizes(value)
            case InputItself(position):
                return self.primals[position]
            case Value(position):
                return self.live(position)
            case AliasOfInput() | AliasOfIntermediate() | AliasUsedInside():
                if id(kind) not in self._aliases:
                    self._aliases[id(kind)] = self._alias(kind)
                return self._aliases[id(kind)]

    def _alias(self, kind: AliasOfInput | AliasOfIntermediate | AliasUsedInside) -> torch.Tensor:
        base = self.output(kind.base)
        return as_view_of(base, self.output(kind.value)) if isinstance(kind, AliasUsedInside) else kind.make(base, self.sizes)


def _history(tensor: torch.Tensor, depth: int) -> Any:
    """The node ``depth`` steps above that of ``tensor``."""
    node = tensor.grad_fn
    for _ in range(depth):
        node = node and node.next_functions[0][0]
    return node
