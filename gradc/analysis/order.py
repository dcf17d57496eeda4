"""Let gradients reach a tensor in eager's order where casts and views of it are made outside the region's own nodes.

    make_detours: Tape -> None      sorts the primals that are made; adds primals, and entries of ``Tape.detours``
    is_detour:    Primal -> bool
    live_order:   (Tape, segments, nodes of views) -> what a call makes, in eager's order
    uses:         Tape -> {edge: [(node, number of its next edge)]}

A cast or view that is a primal is made before the region's own nodes, so the engine runs its node after all of theirs. In
eager it runs between the uses of the arguments: later ones first, then the cast, then earlier ones. In this order gradients
reach leaves and their hooks, and those of one leaf add up. So each earlier use of any argument, and of a view that another is
made of, gets a detour: an alias of it, made before the cast, whose node only hands the gradient on, and does so when the
earlier use would. And segments that eager would have made before the cast get lower sequence numbers than its node. See Note
[Weight casts].
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Sequence
from typing import Any

import torch

from gradc.analysis.segments import Segment
from gradc.errors import UnsupportedError
from gradc.tape.tape import Edge, Node, Primal, Tape, edge_of
from gradc.torch_private import sequence_nr

Made = tuple[str, int, int]  # see live_order


def make_detours(tape: Tape) -> None:
    """See the module's docstring. To be called once every primal is there that is made; a second call changes nothing."""
    num_arguments = sum(primal.step is None for primal in tape.primals)
    if len(tape.primals) == num_arguments or tape.detours:
        return
    made = list(zip(tape.primals[num_arguments:], tape.recorder.inputs[num_arguments:], strict=True))
    order: list[tuple[tuple[int, int], Primal, int, Edge | None]] = [
        ((_made_at(primal), 0), primal, slot, None) for primal, slot in made
    ]
    found = uses(tape)
    own = {primal.edge[0] for primal, _ in made if primal.edge is not None}
    last = max(_made_at(primal) for primal, _ in made)
    sources = {primal.of for primal, _ in made}  # those among them that are made, too
    for position, source in enumerate(tape.primals):
        is_taken = position < num_arguments or position in sources
        for node, number in found[source.edge] if is_taken and source.edge is not None else ():
            if node not in own and sequence_nr(node) < last:
                primal, slot = _detour(tape, position)
                # Of one node's edges the engine follows the first first, so its detour is made last.
                order.append(((sequence_nr(node), -number), primal, slot, (node, number)))
    order.sort(key=lambda item: item[0])
    _renumber(tape, num_arguments, order)


def live_order(tape: Tape, segments: Sequence[Segment], views: dict[int, list[Node]]) -> list[Made]:
    """What a call makes, in the order in which eager makes the nodes; [] if the call makes them so.

    ``("primal", number, 0)`` is one that is made, ``("segment", number, 0)`` stands where its last node does, and
    ``("output", number, depth)`` is a node above a segment's. ``views``: number of an output that is made of another as a view
    -> the nodes of the views, the output's first.
    """
    use_at = {position: node for (node, _), position in tape.detours.items()}
    made = {
        ("primal", i, 0): use_at.get(i, primal.edge[0]) for i, primal in enumerate(tape.primals) if primal.step and primal.edge
    }
    shown = {("output", i, depth): nodes[depth] for i, nodes in views.items() for depth in reversed(range(len(nodes)))}
    as_made = [*made, *(("segment", segment.number, 0) for segment in segments), *shown]
    others = collections.deque(sorted((made | shown).items(), key=lambda item: sequence_nr(item[1])))
    order: list[Made] = []
    for segment in segments:
        last = max(map(sequence_nr, segment.nodes))
        while others and sequence_nr(others[0][1]) <= last:
            order.append(others.popleft()[0])
        order.append(("segment", segment.number, 0))
    order += [item for item, _ in others]
    return [] if order == as_made else order


def uses(tape: Tape) -> dict[Edge, list[tuple[Node, int]]]:
    """For each edge of the tape, the next edges of nodes that are it: who sends gradients along it."""
    found: dict[Edge, list[tuple[Node, int]]] = collections.defaultdict(list)
    ends = {primal.edge for primal in tape.primals if primal.step is None}
    seen: set[Node] = set()
    stack = [edge_of(out) for out in tape.outputs if isinstance(out, torch.Tensor) and out.grad_fn is not None]
    stack += [saved.edge for saved in tape.saved if saved.edge is not None]
    while stack:
        edge = stack.pop()
        node = edge[0]
        if node is None or node in seen or edge in ends or sequence_nr(node) < tape.first_sequence_nr:
            continue
        seen.add(node)
        for number, target in enumerate(node.next_functions):
            found[target].append((node, number))
            stack.append(target)
    return found


def _made_at(primal: Primal) -> int:
    assert primal.edge is not None
    return sequence_nr(primal.edge[0])


def _detour(tape: Tape, position: int) -> tuple[Primal, int]:
    primal = tape.primals[position]
    assert primal.fake is not None
    if write := next(tape.writes_into(primal.fake), None):  # the alias, a view, would get another node
        raise UnsupportedError("input written into whose casts or views are made outside", primal.name, write.where)
    with torch.enable_grad(), tape.fake_mode:
        alias = torch.ops.aten.alias.default(primal.fake)
    name = f"{primal.name} for earlier uses"
    return Primal(name, alias, edge_of(alias), position, _alias), tape.recorder.new_argument(alias, "detour", name)


def is_detour(primal: Primal) -> bool:
    return primal.step is _alias


def _alias(tensor: torch.Tensor, sizes: Any) -> torch.Tensor:
    with torch.enable_grad():
        return torch.ops.aten.alias.default(tensor)


def _renumber(tape: Tape, num_arguments: int, order: list[tuple[tuple[int, int], Primal, int, Edge | None]]) -> None:
    """Put the primals that are made in this order, and note where the detours stand."""
    before = {id(primal): position for position, primal in enumerate(tape.primals)}
    after = {before[id(item[1])]: num_arguments + i for i, item in enumerate(order) if id(item[1]) in before}
    if any(after.get(primal.of, -1) >= after[before[id(primal)]] for _, primal, _, _ in order if id(primal) in before):
        raise UnsupportedError("view of a view whose base is modified")  # its node is made anew, after those of its users
    del tape.primals[num_arguments:], tape.recorder.inputs[num_arguments:]
    for _, primal, slot, use in order:
        if use is not None:
            tape.detours[use] = len(tape.primals)
        tape.primals.append(dataclasses.replace(primal, of=after.get(primal.of, primal.of)))
        tape.recorder.inputs.append(slot)
