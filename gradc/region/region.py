"""A compiled region: a forward Program, and the segments that stand for its backward in the live autograd graph.

    Region: (*inputs) -> list of outputs

Calling a region runs the forward Program below autograd and then builds one live autograd node for each segment.

                forward:  inputs ---Program---> outputs, saved tensors
                                                   |
    live graph: outputs.grad_fn = segment n --edges--> ... --edges--> segment 0 --edges--> grad_fn of the inputs

What a node does when the engine runs it is ``derive.Backwards``.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch

from gradc import native
from gradc.analysis.order import Made, live_order
from gradc.analysis.outputs import (
    Derived,
    Inner,
    Output,
    Plain,
    Returned,
    Value,
    analyse_outputs,
    hoist_views,
    nodes_of_views,
    refuse_views_of_returned_views,
)
from gradc.analysis.segments import Segment, cut
from gradc.backward.cache import Backwards, Settings, Sizes
from gradc.errors import UnsupportedError
from gradc.ir.passes import drop_dead, refuse_phantoms
from gradc.ir.program import Sym
from gradc.ir.verify import checked
from gradc.journal import log
from gradc.nodes.python_node import SegmentFunction
from gradc.region.native_layout import direct_outputs, is_made_natively, lay_out
from gradc.tape.tape import Edge, Tape, edge_of
from gradc.tape.views import as_view_of
from gradc.tape.weight_casts import CacheError
from gradc.torch_private import autocast_nesting, has_gradient_hooks, is_view, next_sequence_nr, put_in_order, sequence_nr


class Region:
    """See the module's docstring. Immutable but for the backwards it compiles; safe under several threads."""

    def __init__(self, tape: Tape, settings: Settings, name: str, *, is_fine: bool = False) -> None:
        self._native: Any
        self._shapes: list[Sym]
        self.tape, self.settings, self.name, self.is_fine = tape, settings, name, is_fine
        refuse_views_of_returned_views(tape)
        hoist_views(tape)
        self.outputs, values = analyse_outputs(tape)
        views = nodes_of_views(tape, self.outputs)
        made_between = [node for nodes in views.values() for node in nodes]
        self.segments = cut(tape, [edge for _, edge in values if edge is not None], is_fine, made_between)
        self._refuse_inner_views()
        self.live_order = live_order(tape, self.segments, views)
        self.backwards = Backwards(tape, self.segments, settings, name, is_fine)
        self.makers = [primal.make for primal in tape.primals if primal.make is not None]
        self.returned = _Returned(tape, values, self.segments)
        program = tape.recorder.program(self.returned.fakes)
        self.forward = checked(refuse_phantoms(drop_dead(program, is_backward=tape.is_derivative)), "region.region")
        self._run = settings.lower(self.forward)
        self._native, self._shapes, self._is_direct, self._has_hooks = None, [], False, has_gradient_hooks
        if native.is_plan(self._run):
            layout = lay_out(self, self._run)
            self._native, self._shapes, self._has_hooks = native.region(layout), layout.shapes, native.has_gradient_hooks
            is_simple = not tape.symints and not any(isinstance(output, Inner) for output in self.outputs)
            self._is_direct = is_simple and all(map(is_made_natively, tape.primals))
        log("graphs", lambda: f"forward of {name}\n{self.forward}", self)

    def _refuse_inner_views(self) -> None:
        """A view of an intermediate is made again behind the segments; gradients from inside would not meet there."""
        inner = {edge for segment in self.segments for node in segment.nodes for edge in node.next_functions}
        for fake, output in zip(self.tape.outputs, self.outputs, strict=True):
            is_inner = isinstance(output, Derived) and isinstance(output.base, Value) and output.requires_grad
            if is_inner and edge_of(fake) in inner:
                raise UnsupportedError("view of an intermediate that is returned and used inside")

    @functools.cached_property
    def fine(self) -> Region:
        """The same region cut wherever a gradient leaves it, so that hooks on leaves run between the cuts, as in eager."""
        return Region(self.tape, self.settings, f"{self.name}, fine", is_fine=True)

    def guarded(self, slow: Callable[..., Any]) -> Callable[..., Any]:
        """What to call: the native region itself, if it can do the whole call; it asks ``slow`` when in doubt."""
        return self._native.direct(direct_outputs(self.outputs), slow) if self._is_direct else slow

    def __call__(self, *inputs: Any) -> list[Any]:
        if not self.is_fine and self.segments and self._has_hooks(inputs):
            return self.fine(*inputs)
        if self.tape.is_nested not in (None, autocast_nesting() > 0):
            raise CacheError("autocast context around the call", "one where there was none when it was traced, or the reverse")
        call, start = Call(self, list(inputs)), next_sequence_nr()
        for make in self.makers:
            call.primals.append(make(call.primals, call.sizes))
        # Before the forward: a view that it writes into has another node when it is next asked for.
        nodes = call.nodes_of_primals(self.live_order)
        if self._native is None:
            segments = call.run(self._run)
        else:
            call.values, segments = self._native(call.primals, [call.sizes(shape) for shape in self._shapes])
        outputs = [call.output(output) for output in self.outputs]
        if self.live_order:
            call.put_in_order(self.live_order, nodes, segments, outputs, start)
        return outputs


def _history(tensor: torch.Tensor, depth: int) -> Any:
    """The node ``depth`` steps above that of ``tensor``."""
    node = tensor.grad_fn
    for _ in range(depth):
        node = node and node.next_functions[0][0]
    return node


class _Returned:
    """What the forward Program returns: the outputs' values, then each saved tensor that is no input.

    Attributes:
        fakes: the tape's tensors, in the order in which the Program returns them.
        of_edge: tape edge -> position of the value it belongs to.
        of_saved: number of a saved tensor -> ("primal" or "value", position).
    """

    def __init__(self, tape: Tape, values: list[tuple[torch.Tensor, Edge | None]], segments: tuple[Segment, ...]) -> None:
        self.fakes: list[torch.Tensor] = [fake for fake, _ in values]
        self.of_edge: dict[Edge, int] = {edge: i for i, (_, edge) in enumerate(values) if edge is not None}
        self.of_saved: dict[int, tuple[str, int]] = {}
        inputs = {slot: position for position, slot in enumerate(tape.recorder.inputs)}
        made = {primal.edge: i for i, primal in enumerate(tape.primals) if primal.make is not None}
        of_slot: dict[int | None, int] = {}
        for position, fake in enumerate(self.fakes):
            of_slot.setdefault(tape.recorder.slot_of(fake), position)
        for index in (index for segment in segments for index in segment.saved):
            saved = tape.saved[index]
            primal = made.get(saved.edge, inputs.get(saved.slot))
            if primal is not None:
                self.of_saved[index] = ("primal", primal)
                continue
            if saved.slot not in of_slot:
                of_slot[saved.slot] = len(self.fakes)
                self.fakes.append(tape.recorder.tensor_of(saved.slot))
            self.of_saved[index] = ("value", of_slot[saved.slot])
            if saved.edge is not None:
                self.of_edge.setdefault(saved.edge, of_slot[saved.slot])


class Call:
    """One call of a region: the tensors its outputs and live nodes are made of. Dropped when the call returns."""

    def __init__(self, region: Region, primals: list[Any]) -> None:
        self.region, self.primals = region, primals
        self.values: list[Any] = []
        self.sizes = Sizes({str(symbol): self._size(*at) for symbol, at in region.tape.recorder.symbols.items()})
        self._entries: dict[tuple[int, int], torch.Tensor] = {}
        self._live: dict[int, torch.Tensor] = {}
        self._derived: dict[int, torch.Tensor] = {}

    def run(self, forward: Callable[[list[Any]], list[Any]]) -> list[Any]:
        """Run the forward, and build the live nodes in Python. They are returned."""
        # A view made without gradient recording would refuse in-place use; a detached handle is no view.
        self.values = [value.detach() if is_view(value) else value for value in forward(list(self.primals))]
        with torch.enable_grad():  # the tape knows which parts recorded gradients, whatever is ambient now
            for segment in self.region.segments:
                self.attach(segment)
        return self.nodes_of_segments()

    def nodes_of_segments(self) -> list[Any]:
        """The live nodes that were built in Python."""
        return [self._entries[segment.number, 0].grad_fn for segment in self.region.segments]

    def nodes_of_primals(self, order: list[Made]) -> dict[Made, Any]:
        """Those in the live order, by their places there."""
        return {item: self.primals[item[1]].grad_fn for item in order if item[0] == "primal"}

    def put_in_order(
        self, order: list[Made], of_primals: dict[Made, Any], segments: Any, outputs: Sequence[Any], start: int
    ) -> None:
        """Deal the sequence numbers of the nodes that this call made, from ``start`` on, anew in the live order."""
        nodes = of_primals | {("segment", number, 0): node for number, node in enumerate(segments)}
        nodes |= {item: _history(outputs[item[1]], item[2]) for item in order if item[0] == "output"}
        live = [nodes[item] for item in order]
        put_in_order([node for node in live if node is not None and sequence_nr(node) >= start])

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
        meta = node._input_metadata[place]
        size = [dim if isinstance(dim, int) else self.sizes(Sym(dim.node.expr)) for dim in meta.shape]
        return torch.empty_strided(size, [0] * len(size), dtype=meta.dtype, device=meta.device)

    def saved_value(self, index: int) -> torch.Tensor:
        """A saved tensor as eager would have packed it: part of the live graph if it needs a gradient."""
        kind, position = self.region.returned.of_saved[index]
        if kind == "primal":
            return self.primals[position]
        if self.region.tape.saved[index].edge is None:
            return self.values[position]
        return self.live(position)

    def live(self, position: int) -> torch.Tensor:
        """A value as the output of its live node; the bare value, if it has none."""
        return self._live.get(position, self.values[position])

    def output(self, output: Output) -> Any:
        """One output of the region, as ``effects.analyse_outputs`` says it is made."""
        match output:
            case Plain(value):
                return self.sizes(value)
            case Returned(position):
                return self.primals[position]
            case Value(position):
                return self.live(position)
            case Derived() | Inner():
                if id(output) not in self._derived:
                    self._derived[id(output)] = self._derive(output)
                return self._derived[id(output)]

    def _derive(self, output: Derived | Inner) -> torch.Tensor:
        tensor = self.output(output.base)
        if isinstance(output, Derived):
            return output.make(tensor, self.sizes)
        return as_view_of(tensor, self.output(output.value))
