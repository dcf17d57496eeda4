"""A compiled region: a forward Program, and the segments that stand for its backward in the live autograd graph.

    Region: (*inputs) -> list of outputs

Calling a region runs the forward Program below autograd and then builds one live autograd node for each segment.

                forward:  inputs ---Program---> outputs, saved tensors
                                                   |
    live graph: outputs.grad_fn = segment n --edges--> ... --edges--> segment 0 --edges--> grad_fn of the inputs

What a node does when the engine runs it is ``backward.cache.BackwardCache``.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from gradc import native
from gradc.analysis.order import live_order
from gradc.analysis.outputs import (
    Derived,
    Inner,
    Value,
    analyse_outputs,
    hoist_views,
    nodes_of_views,
    refuse_views_of_returned_views,
)
from gradc.analysis.segments import Segment, cut
from gradc.backward.cache import BackwardCache
from gradc.backward.settings import Settings
from gradc.errors import UnsupportedError
from gradc.ir.passes import drop_dead, refuse_phantoms
from gradc.ir.program import Sym
from gradc.ir.verify import checked
from gradc.journal import log
from gradc.nodes.live_call import Call
from gradc.region.native_layout import direct_outputs, is_made_natively, lay_out
from gradc.tape.tape import Edge, Tape, edge_of
from gradc.tape.weight_casts import CacheError
from gradc.torch_private import autocast_nesting, has_gradient_hooks, next_sequence_nr


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
        build = functools.partial(_same_settings, settings)
        self.backwards = BackwardCache(tape, self.segments, settings, name, build, is_fine)
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


def _same_settings(settings: Settings, tape: Tape, name: str, is_fine: bool = False) -> Region:
    """How a backward builds regions: a derivative is one, and so is the same function with plain numbers for sizes."""
    return Region(tape, settings, name, is_fine=is_fine)


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
