"""What C++ needs of a recording to replay it: pieces and boundaries in turn, and what the values between them are.

    recording_spec: Captured -> RecordingSpec          gradc._C.Recording is made from it, and reads its attributes by name

    piece 0 -> boundary 0 -> piece 1 -> ... -> last piece
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence, Set

import sympy

from gradc.backends import Lower
from gradc.capture.recording import Boundary, Captured, Slots, Waiting
from gradc.replay.pieces import Cutter, Piece, parts_of
from gradc.symbolic.terms import FIXED, Fit, Term


@dataclasses.dataclass(frozen=True)
class BoundarySpec:
    """A node that runs live: see capture.recording.Boundary. ``dying`` are the slots that nobody reads after it.

    ``metadata`` says what each result must look like; ``done``, ``not_ready``, ``ready`` and ``results`` are the engine's
    state after it.
    """

    node: int
    inputs: Slots
    is_owned: tuple[bool, ...]
    dying: Slots
    outputs: Slots
    metadata: tuple[tuple[bytes, tuple[int | Term, ...]], ...]
    done: tuple[int, ...]
    not_ready: tuple[Waiting, ...]
    ready: tuple[Waiting, ...]
    results: Slots


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
        needed.difference_update(boundary.outputs)
        boundaries.append(_boundary_spec(boundary, needed))
        needed |= _inputs(boundary) | boundary.after.slots()
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


def _inputs(boundary: Boundary) -> set[int]:
    return set(boundary.inputs) - {-1}


def _boundary_spec(boundary: Boundary, needed: Set[int]) -> BoundarySpec:
    """``needed``: slots that something later reads, but for its outputs.

    What it takes dies before it runs, what only its state holds dies after; what both do, at the end of the run.
    """
    after = boundary.after
    return BoundarySpec(
        node=boundary.node,
        inputs=boundary.inputs,
        is_owned=boundary.is_stealable,
        dying=tuple(sorted((_inputs(boundary) ^ after.slots()) - needed)),
        outputs=boundary.outputs,
        metadata=tuple((expected.head, expected.numbers) for expected in boundary.expected),
        done=after.done,
        not_ready=after.not_ready,
        ready=after.ready,
        results=after.results,
    )
