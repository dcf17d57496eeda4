"""Cut a tape into segments: the autograd nodes that a compiled region shows to the engine.

    cut: Hoisted -> tuple[Segment, ...]      in the order in which the forward made them

Two tape nodes are of one *stage* when the same differentiable outputs of the region reach them. In the engine's order,
a maximal run of one stage is a *segment*. A segment is one autograd node at run time, with one next edge for each tape
edge that leaves it, in the order in which eager would send gradients along them; so the engine runs and adds just as it
does in eager. See Note [Segments].
"""

from __future__ import annotations

import bisect
import dataclasses
import functools
import heapq
from collections.abc import Iterable, Iterator, Mapping

from gradc.analysis.hoist import Hoisted
from gradc.errors import UnsupportedError
from gradc.tape.ctx_state import is_python
from gradc.tape.node_facts import LEAVES
from gradc.tape.saves import Saves, saved_by
from gradc.tape.tape import Edge, Node, Saved, Tape
from gradc.torch_private.autograd import is_view, sequence_nr


@dataclasses.dataclass(frozen=True)
class Exit:
    """A tape edge that leaves a segment: next edge number ``position`` of ``source``.

    It leads to a primal (``primal`` is its position) or to another segment (``entry`` is that segment's number and the
    number of the entry).
    """

    source: Node
    position: int
    primal: int | None = None
    entry: tuple[int, int] | None = None


@dataclasses.dataclass(frozen=True)
class LaterView:
    """What an op in place has made of a view, and saved, where the view's own node belongs to a later segment.

    That leads to this one, which knows it weakly, as in eager: whether it is there in backward is for the caller to say.

    Attributes:
        entry: where gradients of the saved tensor go as long as it is there: the number of a segment and that of its entry.
        once_gone: where they go then: to the op itself, past the view. None if no backward comes here without the view's node.
    """

    entry: tuple[int, int]
    once_gone: tuple[int, int] | None


@dataclasses.dataclass(frozen=True)
class Segment:
    """A run of tape nodes that becomes one autograd node.

    Attributes:
        number: its place in the order of the forward.
        nodes: the tape nodes, in the order in which the engine runs them.
        entries: the tape edges along which gradients come in: those of outputs, those from other segments, and last,
            from ``num_tangents`` on, those of saved values, which only a backward of the backward uses.
        exits: the tape edges that leave, in eager's order.
        saves: what each node saved.
        on_ctx: numbers of those saved tensors that the user's code put on ``ctx``: hidden from hooks, unchecked, not freed.
        later: numbers of those that are views with nodes of later segments.
    """

    number: int
    nodes: tuple[Node, ...]
    entries: tuple[Edge, ...]
    num_tangents: int
    exits: tuple[Exit, ...]
    saves: Mapping[Node, Saves]
    on_ctx: frozenset[int]
    later: Mapping[int, LaterView]

    @functools.cached_property
    def saved(self) -> tuple[int, ...]:
        """Numbers of the saved tensors (``Tape.saved``) that the nodes own, in eager's order of packing."""
        return tuple(sorted({index for saves in self.saves.values() for index in saves.indices}))

    @property
    def saved_by_python(self) -> set[int]:
        """Numbers of those that the backward of a custom op reads, the user's code, or finds on its ``ctx``."""
        return {index for node, saves in self.saves.items() if is_python(node) for index in saves.indices}

    @functools.cached_property
    def shared(self) -> tuple[tuple[int, ...], ...]:
        """Positions of the exits that lead to the same primal, for each primal that several lead to."""
        of_primal: dict[int, list[int]] = {}
        for position, exit_ in enumerate(self.exits):
            if exit_.primal is not None:
                of_primal.setdefault(exit_.primal, []).append(position)
        return tuple(tuple(positions) for positions in of_primal.values() if len(positions) > 1)

    @functools.cached_property
    def targets(self) -> dict[Edge, tuple[int, ...]]:
        """Tape edge -> positions of the exits along it. Empty if the live nodes have other targets: a detour is in the way."""
        found: dict[Edge, list[int]] = {}
        for position, exit_ in enumerate(self.exits):
            found.setdefault(exit_.source.next_functions[exit_.position], []).append(position)
        ends = [{(self.exits[i].primal, self.exits[i].entry) for i in positions} for positions in found.values()]
        is_direct = all(len(end) == 1 for end in ends) and len(set().union(*ends)) == len(ends)
        return {edge: tuple(positions) for edge, positions in found.items()} if is_direct else {}

    def inlets(self, num_tangents: int) -> tuple[Edge, ...]:
        """The tape edges that so many tangents come in by: the entries, and beyond them what the targets have got so far."""
        return (*self.entries, *self.targets) if num_tangents > len(self.entries) else self.entries

    @functools.cached_property
    def python_behind(self) -> tuple[Node, ...]:
        """The nodes of custom ops behind the exits."""
        seen: set[Node] = {None, *self.nodes}
        stack = [exit_.source.next_functions[exit_.position][0] for exit_ in self.exits]
        while stack:
            node = stack.pop()
            if node not in seen:
                seen.add(node)
                stack += [target for target, _ in node.next_functions]
        return tuple(node for node in seen.difference(self.nodes) if is_python(node))

    @property
    def has_hidden_saves(self) -> bool:
        return any(saves.has_hidden for saves in self.saves.values())


def cut(
    hoisted: Hoisted,
    observables: Iterable[Edge],
    made_between: Iterable[Node] = (),
    *,
    is_split_at_leaves: bool = False,
    is_split_at_nodes: bool = False,
) -> tuple[Segment, ...]:
    """Cut the tape below ``observables``, the tape edges of the region's differentiable outputs.

    ``made_between``: nodes that stand in the live graph by themselves. No segment has nodes from before and after one of them,
    so that what it sends to a value comes between what those send.
    ``is_split_at_leaves``: cut behind each node that sends a gradient to a primal, too, so that it gets there when it does in
    eager.
    ``is_split_at_nodes``: each segment has one node.

    Raises:
        UnsupportedError: if the tape leads to a leaf that is no primal, or a node saved a view whose own node comes later.
    """
    observables = tuple(dict.fromkeys(observables))
    primal_of = {primal.edge: position for position, primal in enumerate(hoisted.primals) if primal.edge is not None}
    reach = _Reach(hoisted.tape, primal_of)
    for bit, edge in enumerate(observables):
        reach.walk(edge, 1 << bit)
    saves = reach.add_saved_values()
    if is_split_at_nodes:
        return _Joined(hoisted, primal_of, [(node,) for node in _engine_order(reach.mask)][::-1], saves).segments(observables)
    runs = _runs(reach.mask, primal_of if is_split_at_leaves else {}, sorted(map(sequence_nr, made_between)))
    return _Joined(hoisted, primal_of, runs, saves).segments(observables)


def refuse_later_views(tape: Tape, segments: Iterable[Segment]) -> None:
    """Without the native nodes, nothing can know a node weakly."""
    for segment in segments:
        for index in segment.later:
            raise _later_view(tape, tape.saved[index])


def _later_view(tape: Tape, saved: Saved) -> UnsupportedError:
    assert saved.edge is not None, "the history of a view"
    return UnsupportedError("written view that leads to another output", where=tape.line_of(saved.edge[0]))


class _Joined:
    """Where the runs lead, and where gradients enter them."""

    def __init__(
        self, hoisted: Hoisted, primal_of: Mapping[Edge, int], runs: list[tuple[Node, ...]], saves: Mapping[Node, Saves]
    ) -> None:
        self.tape, self.detours, self.primal_of, self.runs, self.saves = hoisted.tape, hoisted.detours, primal_of, runs, saves
        self.number_of = {node: number for number, run in enumerate(runs) for node in run}
        self.entries: list[dict[Edge, int]] = [{} for _ in runs]

    def segments(self, observables: Iterable[Edge]) -> tuple[Segment, ...]:
        for edge in observables:
            if edge not in self.primal_of:
                self.enter(edge)
        exits = [tuple(self.exits_of(number)) for number in reversed(range(len(self.runs)))][::-1]
        num_tangents = [len(found) for found in self.entries]
        later = [dict(self.enter_saved(number)) for number in range(len(self.runs))]
        return tuple(
            Segment(
                number,
                run,
                tuple(self.entries[number]),
                num_tangents[number],
                exits[number],
                {node: self.saves[node] for node in run},
                frozenset(index for index in self.saved_by(run) if self.tape.saved[index].is_on_ctx),
                later[number],
            )
            for number, run in enumerate(self.runs)
        )

    def enter(self, edge: Edge) -> tuple[int, int]:
        """The segment that ``edge`` enters, and the number of the entry there."""
        number = self.number_of[edge[0]]
        return number, self.entries[number].setdefault(edge, len(self.entries[number]))

    def enter_saved(self, number: int) -> Iterator[tuple[int, LaterView]]:
        """Make entries of the edges of what the segment saved. The views among that whose nodes come later."""
        for index in self.saved_by(self.runs[number]):
            saved = self.tape.saved[index]
            if saved.edge is None or saved.edge[0] not in self.number_of or saved.edge in self.primal_of:
                continue
            entry, once_gone = self.enter(saved.edge), saved.once_gone
            if entry[0] > number and once_gone is not None:
                yield index, LaterView(entry, self.enter(once_gone) if once_gone[0] in self.number_of else None)
            elif entry[0] > number and is_view(saved.fake):
                raise _later_view(self.tape, saved)

    def exits_of(self, number: int) -> Iterator[Exit]:
        for node in self.runs[number]:
            if all(target is None for target, _ in node.next_functions):
                raise UnsupportedError("gradient that leads nowhere", node.name(), self.tape.line_of(node))
            for position, target in enumerate(node.next_functions):
                if target in self.primal_of:
                    yield Exit(node, position, primal=self.detours.get((node, position), self.primal_of[target]))
                elif target[0] is not None and self.number_of[target[0]] != number:
                    yield Exit(node, position, entry=self.enter(target))

    def saved_by(self, run: Iterable[Node]) -> Iterator[int]:
        return (index for node in run for index in self.saves[node].indices)


class _Reach:
    """Which observables reach each node, as a bit mask; 0 for a node that only leads to a saved value."""

    def __init__(self, tape: Tape, primal_of: dict[Edge, int]) -> None:
        self.tape, self.primal_of = tape, primal_of
        self.mask: dict[Node, int] = {}

    def walk(self, start: Edge, bits: int) -> None:
        """Add ``bits`` to every node below ``start``."""
        stack = [start]
        while stack:
            edge = stack.pop()
            node = edge[0]
            if node is None or edge in self.primal_of or (node in self.mask and self.mask[node] & bits == bits):
                continue
            if node in LEAVES:
                raise UnsupportedError("leaf made inside the region", where=self.tape.line_of(node))
            self.mask[node] = self.mask.get(node, 0) | bits
            stack += node.next_functions

    def add_saved_values(self) -> dict[Node, Saves]:
        """Walk below saved values, too: a backward of the backward sends gradients there. What each node saved."""
        saves: dict[Node, Saves] = {}
        while new := [node for node in self.mask if node not in saves]:
            for node in new:
                saves[node] = saved_by(self.tape, node)
                for saved in (self.tape.saved[index] for index in saves[node].indices):
                    if saved.edge is not None and saved.edge[0] not in self.mask and not self._is_foreign(saved.edge[0]):
                        self.walk(saved.edge, 0)
                    if saved.edge is not None and saved.once_gone is not None and self._may_be_gone(saved.edge[0], node):
                        self.walk(saved.once_gone, 0)
        return saves

    def _may_be_gone(self, view: Node, saver: Node) -> bool:
        """True if a backward may come to a node that saved a view, while nobody has the view's own node."""
        return self.mask.get(view) != self.mask[saver]

    def _is_foreign(self, node: Node) -> bool:
        """True for a node of the tape that this tape is the derivative of: its edges are all primals here."""
        return sequence_nr(node) < self.tape.first_sequence_nr


def _runs(reach: dict[Node, int], ends: dict[Edge, int], gaps: list[int]) -> list[tuple[Node, ...]]:
    """Maximal runs of equal reach in the engine's order; the runs themselves in the order of the forward.

    A node with an edge in ``ends`` is the last of its run. Nodes of a run have no sequence number of ``gaps`` between them.
    """
    runs: list[list[Node]] = []
    is_open = False

    def stage(node: Node) -> tuple[int, int]:
        return reach[node], bisect.bisect(gaps, sequence_nr(node))

    for node in _engine_order(reach):
        if is_open and stage(runs[-1][-1]) == stage(node):
            runs[-1].append(node)
        else:
            runs.append([node])
        is_open = not any(edge in ends for edge in node.next_functions)
    return [tuple(run) for run in reversed(runs)]


def _engine_order(nodes: Iterable[Node]) -> Iterator[Node]:
    """Descending by sequence number, but each node behind all that lead to it.

    A view whose base was modified in place gets its node when its history is next asked for: after the node of the op that
    asks.
    """
    num_waiting = dict.fromkeys(nodes, 0)
    for node in num_waiting:
        for target, _ in node.next_functions:
            if target in num_waiting:
                num_waiting[target] += 1
    ready = [(-sequence_nr(node), number, node) for number, node in enumerate(num_waiting) if not num_waiting[node]]
    heapq.heapify(ready)
    number = len(num_waiting)
    while ready:
        *_, node = heapq.heappop(ready)
        yield node
        for target, _ in node.next_functions:
            if target in num_waiting:
                num_waiting[target] -= 1
                if not num_waiting[target]:
                    number += 1
                    heapq.heappush(ready, (-sequence_nr(target), number, target))
