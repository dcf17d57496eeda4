"""A segment as the nodes that it stands for: what ``SegmentNode::expand`` puts in its place (nodes/csrc/expand.h).

    expansion: (Segment, the region cut node by node, sizes) -> Expansion; None where it has to stay one
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from gradc import native
from gradc.analysis.segments import Segment
from gradc.ir.sizes import Sizes
from gradc.ir.values import Sym
from gradc.torch_private.autograd import sequence_nr


class Part(NamedTuple):
    """One node. ``before_last``: how many nodes before the segment's last one eager makes it.

    ``exits``: of each, the exit of the segment that it is, or -1 where it leads to another part. ``saved``: of each saved
    tensor, its position in the segment.
    """

    number: int
    before_last: int
    exits: list[int]
    saved: list[int]


class Expansion(NamedTuple):
    """``entries``: of each of the segment's, the part and which of its entries it is."""

    region: native.extension.Region
    shapes: list[int]
    parts: list[Part]
    entries: list[tuple[int, int]]


class Fine(Protocol):
    """The region cut node by node."""

    @property
    def segments(self) -> tuple[Segment, ...]: ...
    @property
    def native(self) -> native.extension.Region | None: ...
    @property
    def shapes(self) -> tuple[Sym, ...]: ...


def expansion(segment: Segment, fine: Fine, sizes: Sizes) -> Expansion | None:
    """See the module's docstring."""
    if fine.native is None:
        return None
    parts = [part for part in fine.segments if part.nodes[0] in segment.nodes]
    last = max(map(sequence_nr, segment.nodes))
    exits = {(exit_.source, exit_.position): number for number, exit_ in enumerate(segment.exits)}
    places = {edge: (i, number) for i, part in enumerate(parts) for number, edge in enumerate(part.entries)}
    if any(edge not in places for edge in segment.entries):
        return None
    return Expansion(
        fine.native,
        [sizes(shape) for shape in fine.shapes],
        [
            Part(
                part.number,
                last - sequence_nr(part.nodes[0]),
                [exits.get((exit_.source, exit_.position), -1) for exit_ in part.exits],
                [segment.saved.index(index) for index in part.saved],
            )
            for part in parts
        ],
        [places[edge] for edge in segment.entries],
    )
