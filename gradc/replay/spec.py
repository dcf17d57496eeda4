"""What C++ needs of a recording to replay it: pieces and boundaries in turn, and what the values between them are.

    recording_spec: Captured -> RecordingSpec          gradc._C.Recording is made from it, and reads its attributes by name

    piece 0 -> boundary 0 -> piece 1 -> ... -> last piece
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import sympy

from gradc.backends import Lower
from gradc.capture.recording import Boundary, Captured, Slots
from gradc.replay.pieces import Cutter, Piece, parts_of
from gradc.symbolic.terms import FIXED, Fit, Term


@dataclasses.dataclass(frozen=True)
class BoundarySpec:
    """A node that runs live. ``dying``: the slots that nobody reads after it.

    What it takes dies before it runs, what only the state after it holds dies then; what both do, at the end of the run. What
    it returns for nobody dies at once: it may be what else it returns, and eager takes a gradient that nobody holds as it is.
    """

    boundary: Boundary
    dying: Slots


@dataclasses.dataclass(frozen=True)
class RecordingSpec:
    """``inputs`` are the slots of the walked tensors; ``terms`` what the walk's numbers must be, for ``symbols`` found there.

    ``has_offsets``: it holds only where the walked tensors begin where they did in their memory.
    """

    num_slots: int
    inputs: Slots
    pieces: tuple[Piece, ...]
    boundaries: tuple[BoundarySpec, ...]
    results: Slots
    terms: tuple[Term, ...]
    symbols: tuple[int, ...]
    has_offsets: bool


def recording_spec(captured: Captured, lower: Lower, fit: Fit = FIXED, names: Sequence[sympy.Symbol] = ()) -> RecordingSpec:
    """Cut, and run each piece by ``lower``. ``fit`` and ``names`` are those of a trace with symbolic sizes.

    Raises:
        UnsupportedError: if it needs a value that only existed while recording.
    """
    cutter, parts = Cutter(captured, lower, names), parts_of(captured)
    needed = set(captured.results) - {-1}  # by what comes later: read from the end
    pieces = [cutter.piece(parts.pop(), needed)]
    boundaries: list[BoundarySpec] = []
    for boundary in reversed(captured.boundaries):
        needed.update(pieces[-1].inputs)
        unused = set(boundary.outputs) - {-1} - needed
        needed.difference_update(boundary.outputs)
        taken, waiting = set(boundary.inputs) - {-1}, boundary.after.slots()
        boundaries.append(BoundarySpec(boundary, tuple(sorted(((taken ^ waiting) | unused) - needed))))
        needed |= taken | waiting
        pieces.append(cutter.piece(parts.pop(), needed))
    return RecordingSpec(
        num_slots=len(captured.slots),
        inputs=captured.inputs,
        pieces=tuple(reversed(pieces)),
        boundaries=tuple(reversed(boundaries)),
        results=captured.results,
        terms=fit.terms,
        symbols=fit.sources,
        has_offsets=captured.has_offsets,
    )
