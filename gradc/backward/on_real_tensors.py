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
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch

from gradc import native
from gradc.ambient import autocast_state
from gradc.analysis.facts import Facts
from gradc.analysis.hoist import Hoisted
from gradc.analysis.identity_nodes import HoistedInput, with_detours
from gradc.analysis.order import live_order
from gradc.analysis.segments import cut
from gradc.backward.run_nodes import Grads, run_nodes
from gradc.ir.known import KnownTensors
from gradc.ir.program import Program
from gradc.nodes.backward_call import BackwardCall
from gradc.nodes.live_call import Call, Place
from gradc.tape.ctx_state import giving_out, is_python
from gradc.tape.node_facts import CASTS
from gradc.tape.record import packing
from gradc.tape.tape import Edge, Node, Primal, Saved, Tape, Unpacker, edge_of
from gradc.tape.weight_casts import CacheError, Cast, weights_among
from gradc.torch_private.autograd import input_metadata, next_sequence_nr, number_nodes, sequence_nr

Autocast = Callable[[], contextlib.AbstractContextManager[Any]]

_NOTHING = torch.empty(0)  # for a node of the new tape, before anything is saved


def run_on_real_tensors(tape: Tape, call: BackwardCall) -> Grads:
    """See the module's docstring."""
    try:
        return _run(tape, call)
    except Exception:
        call.let_go.extend(_owned_by_what_ran(tape, call))
        raise


def _run(tape: Tape, call: BackwardCall) -> Grads:
    segment, given = call.segment, dict(zip(call.segment.saved, call.saved, strict=True))
    unpack = lambda index: given.get(index, tape.saved[index].fake)
    with tape.lock, tape.unpacking(unpack), giving_out(tape, segment.nodes, unpack):
        return run_nodes(tape, segment, call.tangents, call.needed, stealable=call.stealable)


def _owned_by_what_ran(tape: Tape, call: BackwardCall) -> list[int]:
    """Positions of what is owned by the nodes that run before one raises.

    Found by running them once more with hooks, which lay sums out otherwise; not where that would be the user's code. What they
    warned of they have said.
    """
    segment, ran = call.segment, set[Node]()
    if any(map(is_python, segment.nodes)):
        return []
    with contextlib.ExitStack() as stack:
        for node in segment.nodes:
            stack.callback(node.register_hook(lambda *_, node=node: ran.add(node)).remove)
        with contextlib.suppress(Exception), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            _run(tape, call)
            return []  # it was no node that raised
    owned = {index for node in ran for index in segment.saves[node].indices}
    return [position for position, index in enumerate(segment.saved) if index in owned]


def differentiate(parent: Tape, call: BackwardCall, edges: Sequence[Edge | None], autocast: Autocast) -> Grads:
    """See the module's docstring.

    ``edges``: where on the tape each saved tensor comes from, for those with history. ``autocast``: what the live nodes run
    under.
    """
    segment, saved, tangents = call.segment, call.saved, call.tangents
    start = next_sequence_nr()
    stand_ins = [None if t is None else t.detach().requires_grad_(t.requires_grad) for t in tangents]
    lives: list[torch.Tensor] = []
    primals: list[Primal] = []
    for live, stand_in in zip(tangents, stand_ins):
        if live is not None and stand_in is not None and stand_in.requires_grad:
            lives.append(live)
            primals.append(Primal("tangent", live, edge_of(stand_in)))
    for live, edge in zip(saved, edges, strict=True):
        if edge is not None and live is not None:
            lives.append(live)
            primals.append(Primal("saved", live, edge))
    by_index = dict(zip(segment.saved, saved, strict=True))
    unpack = lambda index: by_index.get(index, parent.saved[index].fake)
    packed: list[Saved] = []
    unpacker = Unpacker(lambda index: _NOTHING)

    def pack(tensor: torch.Tensor) -> int:  # as a value apart from its history, so that nothing holds itself
        packed.append(Saved(-1, _history(tensor), tensor.detach(), tensor._version))
        return len(packed) - 1

    with parent.lock, parent.unpacking(unpack), giving_out(parent, segment.nodes, unpack), packing(pack, unpacker):
        grads = run_nodes(parent, segment, stand_ins, call.needed, create_graph=True)
    tape = _real_tape(parent, unpacker, primals, grads, packed, start)
    region = _RealRegion(_sharing_casts(tape, lives), grads, autocast)
    if not region.is_elsewhere:
        return region.attach(lives)
    made: list[Grads] = []
    native.extension.call_elsewhere(lambda: made.append(region.attach(lives)))
    return made[0]


def _real_tape(
    parent: Tape, unpacker: Unpacker, primals: Sequence[Primal], grads: Grads, saved: Sequence[Saved], start: int
) -> Tape:
    """What running the nodes of ``parent`` left behind, as a tape with real tensors in it, whose calls nobody wrote down."""
    return Tape(
        contextlib.nullcontext(),  # type: ignore[arg-type]
        Program(parent.program.name, slots=(), inputs=(), constants={}, instructions=(), outputs=()),
        KnownTensors(),
        unpacker,
        tuple(primals),
        tuple(grads),
        tuple(saved),
        is_derivative=True,
        has_custom_ops=parent.has_custom_ops,
        first_sequence_nr=start,
        lock=parent.lock,
    )


def _sharing_casts(tape: Tape, lives: Sequence[torch.Tensor]) -> Hoisted:
    """Make primals of the copies of weights that autocast made: what was unpacked is no weight that its cache knows."""
    facts = Facts(tape)
    casts: list[HoistedInput] = []
    for position in (position for position, is_one in enumerate(weights_among(lives) or ()) if is_one):
        edge = tape.primals[position].edge
        for node, _ in facts.uses_of(edge) if edge else ():
            dtype = input_metadata(node).dtype
            if node in CASTS and (lives[position].device.type, dtype) in autocast_state().enabled:
                casts.append(HoistedInput(Primal("weight", None, (node, 0), position, Cast(dtype))))
    inputs, detours = with_detours(facts, casts)
    return Hoisted(tape, (*tape.primals, *(hoisted.primal for hoisted in inputs)), tape.program, detours)


def _made(primal: Primal, call: Call) -> torch.Tensor:
    assert primal.step is not None
    try:
        return primal.step(call.primals[primal.of], call.sizes)
    except CacheError as error:  # in eager the op that the cast was for raises
        raise RuntimeError(f"a formula of backward would meet two dtypes; weight cast before {error.detail}") from None


class _RealRegion:
    """What ``Call`` reads of a region, for one whose values are there already."""

    def __init__(self, hoisted: Hoisted, grads: Grads, autocast: Autocast) -> None:
        self.hoisted, self.tape, self.grads = hoisted, hoisted.tape, grads
        self.outputs = [None if grad is None else _history(grad) for grad in grads]
        self.primal_of = {primal.edge: position for position, primal in enumerate(hoisted.primals)}
        wanted = [edge for edge in self.outputs if edge is not None]
        self.is_elsewhere = native.is_built() and any(grad is not None and not grad.is_cpu for grad in grads)
        self.segments = cut(hoisted, wanted, is_split_at_nodes=self.is_elsewhere)
        self.returned = _Values()
        for grad, edge in zip(grads, self.outputs, strict=True):
            if grad is not None and edge is not None and edge not in self.primal_of:
                self.returned.add(grad.detach(), edge)
        for index in (index for segment in self.segments for index in segment.saved):
            saved = self.tape.saved[index]
            primal = self.primal_of.get(saved.edge)
            known = Place(False, self.returned.add(saved.fake, saved.edge)) if primal is None else Place(True, primal)
            self.returned.of_saved[index] = known
        shapes = tuple(dataclasses.replace(saved, edge=None, fake=_without_memory(saved.fake)) for saved in self.tape.saved)
        bare = dataclasses.replace(self.tape, primals=(), outputs=(), saved=shapes)  # edges hold nodes, and these the tape
        self.backwards = _RealBackwards(bare, [saved.edge for saved in self.tape.saved], autocast)

    def attach(self, primals: list[torch.Tensor]) -> Grads:
        """Build the live nodes. The gradients, as what comes out of them."""
        call, start = Call(self, primals), next_sequence_nr()
        call.values = self.returned.tensors
        for primal in self.hoisted.primals:
            if primal.step is not None:
                primals.append(_made(primal, call))
        for segment in self.segments:
            call.attach(segment)
        order = live_order(self.hoisted, self.segments, is_numbered=self.is_elsewhere)
        of_primals, of_segments = call.nodes_of_primals(order), call.nodes_of_segments()
        if self.is_elsewhere:  # the numbers of the nodes that they stand for, which were counted
            number_nodes((node, sequence_nr(s.nodes[0])) for node, s in zip(of_segments, self.segments, strict=True))
            cast = [(node, item) for node, item in zip(of_primals, order) if node is not None and sequence_nr(node) >= start]
            number_nodes((node, self.tape.first_sequence_nr + item.offset) for node, item in cast)
        else:
            call.put_in_order(order, of_primals, of_segments, (), start)

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
        self.of_saved: dict[int, Place] = {}
        self.transposed: tuple[int, ...] = ()

    def add(self, tensor: torch.Tensor, edge: Edge | None) -> int:
        if edge is not None and edge in self.of_edge:
            return self.of_edge[edge]
        self.tensors.append(tensor)
        if edge is not None:
            self.of_edge[edge] = len(self.tensors) - 1
        return len(self.tensors) - 1


class _RealBackwards:
    """The backwards of such a region: its nodes, run as they are. ``edges``: those of the saved tensors, by number."""

    def __init__(self, tape: Tape, edges: list[Edge | None], autocast: Autocast) -> None:
        self.tape, self.edges, self.autocast = tape, edges, autocast

    def grads(self, call: BackwardCall) -> Grads:
        """As ``BackwardCache.grads``."""
        segment = call.segment
        with self.autocast():
            if torch.is_grad_enabled():
                return differentiate(self.tape, call, [self.edges[index] for index in segment.saved], self.autocast)
            by_index = dict(zip(segment.saved, call.saved, strict=True))
            with self.tape.lock, self.tape.unpacking(lambda index: by_index.get(index, self.tape.saved[index].fake)):
                return run_nodes(self.tape, segment, call.tangents, call.needed, stealable=call.stealable)


def _without_memory(tensor: torch.Tensor) -> torch.Tensor:
    """Of its shape, for a node beyond the exits, which the engine visits for nothing: some ask for sizes all the same."""
    return torch.empty((), dtype=tensor.dtype, device=tensor.device).expand(tensor.shape)


def _history(tensor: torch.Tensor) -> Edge | None:
    return edge_of(tensor) if tensor.requires_grad else None
