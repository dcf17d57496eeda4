"""Cut a tape into segments: the autograd nodes that a compiled region shows to the engine.

    cut: Tape -> tuple[Segment, ...]      in the order in which the forward made them

Two tape nodes are of one *stage* when the same differentiable outputs of the region reach them. Sorted by sequence number,
a maximal run of one stage is a *segment*. A segment is one autograd node at run time, with one next edge for each tape
edge that leaves it, in the order in which eager would send gradients along them; so the engine runs and adds just as it
does in eager. See Note [Segments].
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from gradc.aot.tape import Edge, Node, Tape, edge_of
from gradc.errors import UnsupportedError
from gradc.torch_private import sequence_nr


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
class Segment:
    """A run of tape nodes that becomes one autograd node.

    Attributes:
        number: its place in the order of the forward.
        nodes: the tape nodes, in the order in which the engine runs them.
        entries: the tape edges along which gradients come in: those of outputs, those from other segments, and last,
            from ``num_tangents`` on, those of saved values, which only a backward of the backward uses.
        exits: the tape edges that leave, in eager's order.
        saved: numbers of the saved tensors (``Tape.saved``) that the nodes own, in eager's order of packing.
        has_hidden_saves: True if a node saves what no hook sees; the saved tensors are then freed all the same.
    """

    number: int
    nodes: tuple[Node, ...]
    entries: tuple[Edge, ...]
    num_tangents: int
    exits: tuple[Exit, ...]
    saved: tuple[int, ...]
    has_hidden_saves: bool


def cut(tape: Tape, observables: Iterable[Edge], is_fine: bool = False) -> tuple[Segment, ...]:
    """Cut the tape below ``observables``, the tape edges of the region's differentiable outputs.

    ``is_fine``: cut behind each node that sends a gradient to a primal, too, so that it gets there when it does in eager.

    Raises:
        UnsupportedError: if the tape leads to a leaf that is no primal.
    """
    observables = tuple(dict.fromkeys(observables))
    primal_of = {primal.edge: position for position, primal in enumerate(tape.primals) if primal.edge is not None}
    reach = _reach(tape, observables, primal_of)
    runs = _runs(reach, primal_of if is_fine else {})
    number_of = {node: number for number, run in enumerate(runs) for node in run}

    entries: list[dict[Edge, int]] = [{} for _ in runs]

    def enter(edge: Edge) -> tuple[int, int]:
        number = number_of[edge[0]]
        return number, entries[number].setdefault(edge, len(entries[number]))

    for edge in observables:
        if edge not in primal_of:
            enter(edge)
    exits: list[list[Exit]] = [[] for _ in runs]
    for number in reversed(range(len(runs))):
        for node in runs[number]:
            for position, target in enumerate(node.next_functions):
                if target[0] is None:
                    continue
                if target in primal_of:
                    exits[number].append(Exit(node, position, primal=primal_of[target]))
                elif number_of[target[0]] != number:
                    exits[number].append(Exit(node, position, entry=enter(target)))
    num_tangents = [len(found) for found in entries]

    owned = [tape_saves(tape, run) for run in runs]
    for saved, _ in owned:
        for index in saved:
            edge = tape.saved[index].edge
            if edge is not None and edge[0] in number_of and edge not in primal_of:
                enter(edge)
    return tuple(
        Segment(number, run, tuple(entries[number]), num_tangents[number], tuple(exits[number]), *owned[number])
        for number, run in enumerate(runs)
    )


def observable_edges(outputs: Iterable[object]) -> list[Edge]:
    """The tape edges of those fake outputs that require a gradient."""
    return [edge_of(out) for out in outputs if getattr(out, "requires_grad", False)]  # type: ignore[arg-type]


def tape_saves(tape: Tape, nodes: Iterable[Node]) -> tuple[tuple[int, ...], bool]:
    """What ``nodes`` saved, in packing order, and whether one of them saved something that no hook sees."""
    indices: set[int] = set()
    has_hidden = False
    for node in nodes:
        found, others = tape.saved_by(node)
        indices.update(found)
        has_hidden |= others
    return tuple(sorted(indices)), has_hidden


def _reach(tape: Tape, observables: tuple[Edge, ...], primal_of: dict[Edge, int]) -> dict[Node, int]:
    """node -> set of the observables that reach it, as a bit mask. Primals are not in it."""
    reach: dict[Node, int] = {}
    for bit, start in enumerate(observables):
        if start in primal_of:
            continue
        stack = [start[0]]
        while stack:
            node = stack.pop()
            if reach.get(node, 0) >> bit & 1:
                continue
            reach[node] = reach.get(node, 0) | 1 << bit
            if type(node).__name__ == "AccumulateGrad":
                raise UnsupportedError("leaf made inside the region", where=tape.line_of(node))
            stack += [target for target, position in node.next_functions if target and (target, position) not in primal_of]
    return reach


def _runs(reach: dict[Node, int], ends: dict[Edge, int]) -> list[tuple[Node, ...]]:
    """Maximal runs of equal reach by descending sequence number; the runs themselves in ascending order.

    A node with an edge in ``ends`` is the last of its run.
    """
    runs: list[list[Node]] = []
    is_open = False
    for node in sorted(reach, key=sequence_nr, reverse=True):
        if is_open and reach[runs[-1][-1]] == reach[node]:
            runs[-1].append(node)
        else:
            runs.append([node])
        is_open = not any(edge in ends for edge in node.next_functions)
    return [tuple(run) for run in reversed(runs)]
