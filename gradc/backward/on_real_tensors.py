"""Differentiate a segment under create_graph by running its tape nodes on the real tensors: eager's own formulas.

    differentiate:       (Tape, BackwardCall, edges of the saved) -> one gradient or None per exit, and live nodes behind them
    run_on_real_tensors: (Tape, BackwardCall) -> the same, without history

For derivatives that cannot be traced, or that come out otherwise on fake tensors. The nodes leave an autograd graph behind
that begins at the *tape's* edges, where the saved tensors come from. So it is taken as a tape of its own, with real tensors
in it; it is cut into segments, and these become live nodes that lead to the live tensors. Nothing is compiled, and any
further order works by the same step.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import torch

from gradc.ambient import autocast_state
from gradc.analysis.order import live_order, make_detours, uses
from gradc.analysis.segments import cut
from gradc.backward.run_nodes import Grads, run_nodes
from gradc.nodes.backward_call import BackwardCall
from gradc.nodes.live_call import Call
from gradc.tape.ctx_state import giving_out
from gradc.tape.tape import Edge, Primal, Saved, Tape, edge_of
from gradc.tape.weight_casts import CacheError, Cast, weights_among
from gradc.torch_private import next_sequence_nr

Autocast = Callable[[], contextlib.AbstractContextManager[Any]]

_NOTHING = torch.empty(0)  # for a node beyond the exits, which the engine visits for nothing


class _RealTape(Tape):
    """A tape with real tensors in it. What was saved is kept as values apart from history, so that nothing holds itself."""

    def __init__(self, parent: Tape) -> None:
        super().__init__(contextlib.nullcontext(), parent.recorder.name, is_derivative=True)  # type: ignore[arg-type]
        self.lock, self.has_custom_ops = parent.lock, parent.has_custom_ops
        self._unpacked = lambda index: _NOTHING
        self.first_sequence_nr = next_sequence_nr()

    def _pack(self, tensor: torch.Tensor) -> int:
        self.saved.append(Saved(-1, _history(tensor), tensor.detach(), tensor._version))
        return len(self.saved) - 1


def run_on_real_tensors(tape: Tape, call: BackwardCall) -> Grads:
    """See the module's docstring."""
    segment, given = call.segment, dict(zip(call.segment.saved, call.saved, strict=True))
    unpack = lambda index: given.get(index, tape.saved[index].fake)
    with tape.lock, tape.unpacking(unpack), giving_out(tape, segment.nodes, unpack):
        return run_nodes(tape, segment, call.tangents, call.needed)


def differentiate(parent: Tape, call: BackwardCall, edges: Sequence[Edge | None], autocast: Autocast) -> Grads:
    """See the module's docstring.

    ``edges``: where on the tape each saved tensor comes from, for those with history. ``autocast``: what the live nodes run
    under.
    """
    segment, saved, tangents = call.segment, call.saved, call.tangents
    tape = _RealTape(parent)
    stand_ins = [None if t is None else t.detach().requires_grad_(t.requires_grad) for t in tangents]
    primals: list[torch.Tensor] = []
    for live, stand_in in zip(tangents, stand_ins):
        if live is not None and stand_in is not None and stand_in.requires_grad:
            primals.append(live)
            tape.primals.append(Primal("tangent", None, edge_of(stand_in)))
    for live, edge in zip(saved, edges, strict=True):
        if edge is not None:
            primals.append(live)
            tape.primals.append(Primal("saved", None, edge))
    by_index = dict(zip(segment.saved, saved, strict=True))
    unpack = lambda index: by_index.get(index, _NOTHING)
    with parent.lock, parent.unpacking(unpack), giving_out(parent, segment.nodes, unpack):
        with tape.packing():
            grads = run_nodes(parent, segment, stand_ins, call.needed, create_graph=True)
    _share_casts(tape, grads, primals)
    return _RealRegion(tape, grads, autocast).attach(primals)


def _share_casts(tape: _RealTape, grads: Grads, lives: Sequence[torch.Tensor]) -> None:
    """Make primals of the copies of weights that autocast made: what was unpacked is no weight that its cache knows."""
    weights = [position for position, is_one in enumerate(weights_among(lives) or ()) if is_one]
    if not weights:
        return
    tape.primals = [dataclasses.replace(primal, fake=live) for primal, live in zip(tape.primals, lives, strict=True)]
    tape.outputs = grads
    found = uses(tape)
    for position in weights:
        weight = tape.primals[position]
        for node, _ in found[weight.edge] if weight.edge else ():
            dtype = node._input_metadata[0].dtype
            if node.name() == "ToCopyBackward0" and (lives[position].device.type, dtype) in autocast_state().enabled:
                tape.primals.append(Primal("weight", None, (node, 0), position, Cast(dtype)))
    tape.recorder.inputs = list(range(len(tape.primals)))
    make_detours(tape)


def _made(primal: Primal, call: Call) -> torch.Tensor:
    assert primal.step is not None
    try:
        return primal.step(call.primals[primal.of], call.sizes)
    except CacheError as error:  # in eager the op that the cast was for raises
        raise RuntimeError(f"a formula of backward would meet two dtypes; weight cast before {error.detail}") from None


class _RealRegion:
    """What ``Call`` reads of a region, for one whose values are there already."""

    def __init__(self, tape: _RealTape, grads: Grads, autocast: Autocast) -> None:
        self.tape, self.grads = tape, grads
        self.outputs = [None if grad is None else _history(grad) for grad in grads]
        self.primal_of = {primal.edge: position for position, primal in enumerate(tape.primals)}
        self.segments = cut(tape, [edge for edge in self.outputs if edge is not None])
        self.returned = _Values()
        for grad, edge in zip(grads, self.outputs, strict=True):
            if grad is not None and edge is not None and edge not in self.primal_of:
                self.returned.add(grad.detach(), edge)
        for index in (index for segment in self.segments for index in segment.saved):
            saved = tape.saved[index]
            primal = self.primal_of.get(saved.edge)
            known = ("value", self.returned.add(saved.fake, saved.edge)) if primal is None else ("primal", primal)
            self.returned.of_saved[index] = known
        self.backwards = _RealBackwards(tape, [saved.edge for saved in tape.saved], autocast)

    def attach(self, primals: list[torch.Tensor]) -> Grads:
        """Build the live nodes. The gradients, as what comes out of them."""
        call, start = Call(self, primals), next_sequence_nr()
        call.values = self.returned.tensors
        for primal in self.tape.primals:
            if primal.step is not None:
                primals.append(_made(primal, call))
        for segment in self.segments:
            call.attach(segment)
        order = live_order(self.tape, self.segments, {})
        call.put_in_order(order, call.nodes_of_primals(order), call.nodes_of_segments(), (), start)
        self.tape.primals, self.tape.outputs, self.tape.saved = [], [], []  # which hold nodes, and these the tape

        def live(grad: torch.Tensor | None, edge: Edge | None) -> torch.Tensor | None:
            if edge is None:
                return grad
            return primals[self.primal_of[edge]] if edge in self.primal_of else call.live(self.returned.of_edge[edge])

        return [live(grad, edge) for grad, edge in zip(self.grads, self.outputs, strict=True)]


class _Values:
    """Which value belongs to which edge and saved tensor, as ``Region.returned`` says it."""

    def __init__(self) -> None:
        self.tensors: list[torch.Tensor] = []
        self.of_edge: dict[Edge, int] = {}
        self.of_saved: dict[int, tuple[str, int]] = {}

    def add(self, tensor: torch.Tensor, edge: Edge | None) -> int:
        if edge is not None and edge in self.of_edge:
            return self.of_edge[edge]
        self.tensors.append(tensor)
        if edge is not None:
            self.of_edge[edge] = len(self.tensors) - 1
        return len(self.tensors) - 1


class _RealBackwards:
    """The backwards of such a region: its nodes, run as they are. ``edges``: those of the saved tensors, by number."""

    def __init__(self, tape: _RealTape, edges: list[Edge | None], autocast: Autocast) -> None:
        self.tape, self.edges, self.autocast = tape, edges, autocast

    def grads(self, call: BackwardCall) -> Grads:
        """As ``BackwardCache.grads``."""
        segment = call.segment
        with self.autocast():
            if torch.is_grad_enabled():
                return differentiate(self.tape, call, [self.edges[index] for index in segment.saved], self.autocast)
            by_index = dict(zip(segment.saved, call.saved, strict=True))
            with self.tape.lock, self.tape.unpacking(lambda index: by_index.get(index, _NOTHING)):
                return run_nodes(self.tape, segment, call.tangents, call.needed)


def _history(tensor: torch.Tensor) -> Edge | None:
    return edge_of(tensor) if tensor.requires_grad else None
