"""A tape recorded once more, with plain numbers for its symbolic sizes: nodes that hold symbols cannot run on real tensors.

Specialized.at: Sizes -> CutTape, whose segments are those of the symbolic tape, one by one
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from gradc.analysis.segments import Segment
from gradc.backward.bounded_cache import BoundedCache
from gradc.errors import UnsupportedError
from gradc.ir.sizes import Sizes
from gradc.tape.tape import Tape

_OF_A_SLICE = "SliceBackward0"  # torch makes none where a slice turns out to take all there is
MAX_SIZES = 8  # sets of sizes for which a tape with plain numbers is kept

# (number -> its value) -> the same function recorded with these sizes, in the state in which it was first recorded
Retrace = Callable[[Callable[[Any], Any]], Tape]


@dataclasses.dataclass(frozen=True)
class CutTape:
    """A tape and the segments that it is cut into."""

    tape: Tape
    segments: Sequence[Segment]


class Specialized:
    """See the module's docstring. ``cut`` cuts a tape as the symbolic one was cut; ``name`` is the region's, for messages."""

    def __init__(self, symbolic: CutTape, retrace: Retrace | None, cut: Callable[[Tape], Sequence[Segment]], name: str) -> None:
        self._symbolic, self._retrace, self._cut, self._name = symbolic, retrace, cut, name
        self._of_sizes: BoundedCache[Sizes, CutTape] = BoundedCache(MAX_SIZES, symbolic.tape.lock)

    def at(self, sizes: Sizes) -> CutTape:
        """The tape with these sizes; the very tape, if it has no symbols.

        Raises:
            UnsupportedError: if the function does something else at these sizes, or cannot be recorded again.
        """
        if not self._symbolic.tape.symints:
            return self._symbolic
        return self._of_sizes.get(sizes, lambda: self._record(sizes))

    def _record(self, sizes: Sizes) -> CutTape:
        if self._retrace is None:
            raise UnsupportedError("backward of symbolic sizes that cannot be traced", self._name)
        return self.cut_alike(self._retrace(sizes))

    def cut_alike(self, tape: Tape) -> CutTape:
        """A tape of the same function, cut as the symbolic one was.

        Raises:
            UnsupportedError: if it is another.
        """
        segments = self._cut(tape)
        if [_outline(segment) for segment in segments] != [_outline(segment) for segment in self._symbolic.segments]:
            raise UnsupportedError("nodes that depend on sizes", self._name)
        return CutTape(tape, segments)


def _outline(segment: Segment) -> tuple[Any, ...]:
    """What two cuts of the same function have in common, whatever its sizes."""
    nodes = [node.name() for node in segment.nodes if node.name() != _OF_A_SLICE]
    exits = tuple((exit_.position, exit_.primal, exit_.entry) for exit_ in segment.exits)
    return nodes, len(segment.entries), segment.num_tangents, exits, len(segment.saved)
