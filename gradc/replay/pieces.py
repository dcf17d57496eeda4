"""Cut what was recorded into pieces between boundaries, each a Program of its own, ready to run.

    lay_out: Capture -> Layout          positions and slot numbers, which gradc._C.Recording is made from

A piece takes the values that it reads and others made, and returns those that somebody after it needs. Slots of the
recording number the values that pieces hand each other.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

import sympy
import torch

from gradc.backends import Lower
from gradc.capture.capture import Boundary, Capture, Ran, Term
from gradc.errors import UnsupportedError
from gradc.executor import Runner
from gradc.ir.passes import drop_dead
from gradc.ir.program import Instruction, Program, Ref, Slot, map_leaves

_aten = torch.ops.aten


@dataclasses.dataclass
class Piece:
    """Calls between two boundaries. ``runner`` is None if there are none; ``grads``: (leaf's node, slot of its .grad)."""

    runner: Runner | None
    inputs: list[int]
    symbols: list[int]
    dying: list[int]
    outputs: list[int]
    nodes: list[int]
    grads: list[tuple[int, int]]
    leaves: list[int]


@dataclasses.dataclass
class Layout:
    num_slots: int
    inputs: list[int]
    pieces: list[Piece]
    boundaries: list[Boundary]
    results: list[int]
    terms: list[Term]
    symbols: list[int]


def lay_out(
    capture: Capture,
    lower: Lower,
    names: Sequence[sympy.Symbol] = (),
    terms: Sequence[Term] = (),
    sources: Sequence[int] = (),
) -> Layout:
    """See the module's docstring. ``names``, ``terms`` and ``sources`` are those of a trace with symbolic sizes."""
    parts, boundaries = _parts(capture), capture.boundaries
    needed = set(capture.results) - {-1}
    pieces: list[Piece] = []
    for number in reversed(range(len(parts))):
        if number < len(boundaries):
            _retire(boundaries[number], needed)
        piece = _piece(capture, parts[number], needed, lower, names)
        needed |= set(piece.inputs)
        pieces.append(piece)
    pieces.reverse()
    num_slots = len(capture.recorder.slots)
    return Layout(num_slots, capture.inputs, pieces, boundaries, capture.results, list(terms), list(sources))


def whole(capture: Capture) -> Program:
    """All the calls as one Program, for reports: boundaries are gaps in it."""
    return capture.recorder.program([])


@dataclasses.dataclass
class _Part:
    instructions: list[Instruction]
    ran: list[Ran]


def _parts(capture: Capture) -> list[_Part]:
    parts, start, ran = [], 0, list[Ran]()
    instructions = capture.recorder.instructions
    for event in capture.events:
        if isinstance(event, Ran):
            ran.append(event)
            continue
        parts.append(_Part(instructions[start : event.position], ran))
        start, ran = event.position, []
    return [*parts, _Part(instructions[start:], ran)]


def _retire(boundary: Boundary, needed: set[int]) -> None:
    """Decide which values die at ``boundary``, and add what it needs to ``needed``, which is what comes after it."""
    inputs, waiting = set(boundary.inputs) - {-1}, boundary.waiting
    needed -= set(boundary.outputs)
    boundary.dying = sorted((inputs ^ waiting) - needed)
    needed |= inputs | waiting


def _piece(capture: Capture, part: _Part, needed: set[int], lower: Lower, names: Sequence[sympy.Symbol]) -> Piece:
    grads = [(ran.node, ran.grad) for ran in part.ran if ran.grad >= 0]
    made = {out for call in part.instructions for out in call.outs if out is not None}
    wanted = list(dict.fromkeys([slot for _, slot in grads] + sorted(made & needed)))
    program = _steal(drop_dead(_program(capture, part.instructions, wanted), is_backward=True))
    program = _only_read_inputs(program)
    _refuse_unknown(capture, program)
    symbols = _used(program, names)
    is_empty = not program.instructions and not program.outputs
    ready = _with_symbols(_renumbered(program), [names[number] for number in symbols])
    # A value that was made before and is only mutated here is handed on by whoever holds it.
    return Piece(
        runner=None if is_empty else lower(ready),
        inputs=list(program.inputs),
        symbols=symbols,
        dying=sorted(set(program.inputs) - needed - set(wanted)),
        outputs=wanted,
        nodes=[ran.node for ran in part.ran],
        grads=grads,
        leaves=[ran.node for ran in part.ran if ran.is_leaf],
    )


def _program(capture: Capture, instructions: Iterable[Instruction], outputs: list[int]) -> Program:
    """The Program of some of the calls: what it reads and does not make are its inputs."""
    recorder = capture.recorder
    return Program(
        name="compiled_autograd",
        slots=tuple(recorder.slots),
        inputs=(),
        constants=recorder.constants,
        instructions=tuple(instructions),
        outputs=tuple(Ref(slot) for slot in outputs),
    )


def _steal(program: Program) -> Program:
    """Return a leaf's gradient itself, not a detached handle of it: nobody else holds it, so it is the only handle."""
    taken = {out.slot for out in program.outputs if isinstance(out, Ref)}
    made = {out for call in program.instructions for out in call.outs if out not in call.reads}
    source: dict[int, int] = {}
    kept = []
    for call in program.instructions:
        slot = call.outs[0] if call.outs else None
        if call.op is _aten.detach.default and slot in taken and call.args[0].slot in made - taken:
            assert slot is not None
            source[slot] = call.args[0].slot
            taken.add(call.args[0].slot)
        else:
            kept.append(call)
    outputs = tuple(Ref(source.get(out.slot, out.slot)) if isinstance(out, Ref) else out for out in program.outputs)
    return dataclasses.replace(program, instructions=tuple(kept), outputs=outputs)


def _only_read_inputs(program: Program) -> Program:
    made: set[int] = set(program.constants)
    inputs: dict[int, None] = {}
    for call in program.instructions:
        inputs.update((slot, None) for slot in call.reads if slot not in made)
        made.update(out for out in call.outs if out is not None)
    inputs.update((out.slot, None) for out in program.outputs if isinstance(out, Ref) and out.slot not in made)
    return dataclasses.replace(program, inputs=tuple(inputs))


def _refuse_unknown(capture: Capture, program: Program) -> None:
    """Every input must be a walked tensor, or made by an earlier piece or boundary.

    Raises:
        UnsupportedError: for a value that only existed while recording.
    """
    recorder = capture.recorder
    known = set(capture.inputs) | {out for call in recorder.instructions for out in call.outs if out is not None}
    known |= {slot for boundary in capture.boundaries for slot in boundary.outputs}
    for slot in program.inputs:
        if slot not in known:
            raise UnsupportedError("value that only the capture had", recorder.slots[slot].name)


def _renumbered(program: Program) -> Program:
    """The same with slots counted from 0, so that a run's frame holds no more than the piece needs."""
    number: dict[int, int] = {}

    def renumber(slot: int) -> int:
        return number.setdefault(slot, len(number))

    def leaf(value: Any) -> Any:
        return Ref(renumber(value.slot)) if isinstance(value, Ref) else value

    inputs = tuple(renumber(slot) for slot in program.inputs)
    instructions = tuple(
        dataclasses.replace(
            call,
            args=map_leaves(leaf, call.args),
            kwargs=map_leaves(leaf, call.kwargs),
            outs=tuple(None if out is None else renumber(out) for out in call.outs),
        )
        for call in program.instructions
    )
    outputs = tuple(leaf(out) for out in program.outputs)
    constants = {number[slot]: tensor for slot, tensor in program.constants.items() if slot in number}
    slots = tuple(program.slots[slot] for slot in number)
    return Program(program.name, slots, inputs, constants, instructions, outputs)


def _used(program: Program, names: Sequence[sympy.Symbol]) -> list[int]:
    used = {symbol for value in program.syms for symbol in value.expr.free_symbols}
    return [number for number, name in enumerate(names) if name in used]


def _with_symbols(program: Program, names: Sequence[sympy.Symbol]) -> Program:
    """The same, with symbols as ints that follow the inputs."""
    if not names:
        return program
    first, position = len(program.slots), len(program.inputs)
    return dataclasses.replace(
        program,
        slots=(*program.slots, *(Slot(str(name)) for name in names)),
        inputs=(*program.inputs, *range(first, first + len(names))),
        symbols={name: ("int", position + number, 0) for number, name in enumerate(names)},
    )
