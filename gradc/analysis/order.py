"""The order in which eager makes the nodes that a call of a region makes.

    live_order: (Hoisted, segments, Outputs) -> what a call makes, in eager's order

The engine runs later nodes first. A segment whose last node eager would have made before a hoisted cast or view is made after
it by a call, so the call deals out the sequence numbers of all of these anew. See Note [Weight casts].
"""

from __future__ import annotations

import collections
import dataclasses
import enum
from collections.abc import Sequence

from gradc.analysis.hoist import Hoisted
from gradc.analysis.outputs import Outputs
from gradc.analysis.segments import Segment
from gradc.torch_private.autograd import sequence_nr


class Made(enum.Enum):
    """What a live node belongs to; the values are those that the native region reads."""

    PRIMAL = "primal"  # one that is hoisted
    SEGMENT = "segment"  # stands where the segment's last node does
    OUTPUT = "output"


@dataclasses.dataclass(frozen=True)
class LiveNode:
    """One node that a call makes: of primal, segment or output ``number``, or so many nodes (``depth``) above an output's.

    ``offset``: how many nodes eager has made in the call before it.
    """

    made: Made
    number: int
    depth: int = 0
    offset: int = dataclasses.field(default=0, compare=False)


def live_order(
    hoisted: Hoisted, segments: Sequence[Segment], outputs: Outputs | None = None, *, is_numbered: bool = False
) -> tuple[LiveNode, ...]:
    """See the module's docstring; () if a call makes them so, unless it ``is_numbered``: each has its ``offset`` then."""
    use_at = {position: node for (node, _), position in hoisted.detours.items()}
    views = outputs.nodes_of_views if outputs is not None else {}
    nodes = {
        LiveNode(Made.PRIMAL, i): use_at.get(i, primal.edge[0])
        for i, primal in enumerate(hoisted.primals)
        if primal.step and primal.edge
    }
    shown = {
        LiveNode(Made.OUTPUT, i, depth): chain[depth] for i, chain in views.items() for depth in reversed(range(len(chain)))
    }
    as_made = (*nodes, *(LiveNode(Made.SEGMENT, segment.number) for segment in segments), *shown)
    others = collections.deque(sorted((nodes | shown).items(), key=lambda item: sequence_nr(item[1])))
    offset = lambda number: number - hoisted.tape.first_sequence_nr
    order: list[LiveNode] = []

    def add_other() -> None:
        item, node = others.popleft()
        order.append(dataclasses.replace(item, offset=offset(sequence_nr(node))))

    for segment in segments:
        last = max(map(sequence_nr, segment.nodes))
        while others and sequence_nr(others[0][1]) <= last:
            add_other()
        order.append(LiveNode(Made.SEGMENT, segment.number, offset=offset(last)))
    while others:
        add_other()
    is_as_made = tuple(order) == as_made and not (is_numbered and len(order) > len(segments))
    return () if is_as_made else tuple(order)
