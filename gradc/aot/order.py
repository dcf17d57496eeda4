"""Let gradients reach a tensor in eager's order where casts and views of it are made outside the region's own nodes.

    make_detours: Tape -> None      sorts the primals that are made; adds primals, and entries of ``Tape.detours``
    is_detour:    Primal -> bool
    live_order:   (Tape, segments) -> what a call makes, in eager's order
    uses:         Tape -> {edge: [(node, number of its next edge)]}

A cast or view that is a primal is made before the region's own nodes, so the engine runs its node after all of theirs. In
eager it runs between the uses of the arguments: later ones first, then the cast, then earlier ones. In this order gradients
reach leaves and their hooks, and those of one leaf add up. So each earlier use of any argument gets a detour: an alias of the
argument, made before the cast, whose node only hands the gradient on, and does so when the earlier use would. And segments
that eager would have made before the cast get lower sequence numbers than its node. See Note [Weight casts].
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Iterable
from typing import Any

import torch

from gradc.aot.segments import Segment
from gradc.aot.tape import Edge, Node, Primal, Tape, edge_of
from gradc.errors import UnsupportedError
from gradc.torch_private import sequence_nr


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
    for position, argument in enumerate(tape.primals[:num_arguments]):
        for node, number in found[argument.edge] if argument.edge is not None else ():
            if node not in own and sequence_nr(node) < last:
                primal, slot = _detour(tape, position)
                # Of one node's edges the engine follows the first first, so its detour is made last.
                order.append(((sequence_nr(node), -number), primal, slot, (node, number)))
    order.sort(key=lambda item: item[0])
    _renumber(tape, num_arguments, order)


def live_order(tape: Tape, segments: Iterable[Segment]) -> list[tuple[bool, int]]:
    """(True, number of a primal that is made) and (False, number of a segment), in the order in which eager makes the nodes.

    A segment stands where its last node does. Empty if the primals all come first, as they do in a call.
    """
    use_at = {position: node for (node, _), position in tape.detours.items()}
    made = [(use_at.get(i, primal.edge[0]), i) for i, primal in enumerate(tape.primals) if primal.step and primal.edge]
    waiting = collections.deque((sequence_nr(node), position) for node, position in made)
    order = []
    for segment in segments:
        last = max(map(sequence_nr, segment.nodes))
        while waiting and waiting[0][0] <= last:
            order.append((True, waiting.popleft()[1]))
        order.append((False, segment.number))
    order += [(True, position) for _, position in waiting]
    kinds = [is_made for is_made, _ in order]
    return [] if kinds == sorted(kinds, reverse=True) else order


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
