"""Cut what was recorded into pieces between the nodes that run live, each a Program of its own, ready to run.

    parts_of: Captured -> Parts                  calls and nodes between two boundaries
    Cutter.piece: Part, slots needed later -> Piece

A piece takes the values that it reads and others made, and returns those that somebody after it needs. Slots of the
recording number the values that pieces hand each other.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence, Set
from typing import Any

import sympy
import torch

from gradc.backends import Lower
from gradc.capture.recording import Captured, Ran
from gradc.errors import UnsupportedError
from gradc.executor import Runner
from gradc.ir.at_sizes import symbols_of_sizes
from gradc.ir.program import Program
from gradc.ir.values import Instruction, Ref, Slot, map_leaves
from gradc.ir.versions import counted, recounted
from gradc.passes import pipeline

_aten = torch.ops.aten


@dataclasses.dataclass(frozen=True)
class Piece:
    """Calls between two boundaries. ``runner`` is None if there are none; ``grads``: (leaf's node, slot of its .grad).

    ``symbols`` are those whose values follow the inputs, ``dying`` the inputs that nobody reads later. ``recounted``: (position
    of an output, what stands in its version counter in eager), where the calls leave something else. C++ reads all of it.
    """

    runner: Runner | None
    inputs: tuple[int, ...]
    symbols: tuple[int, ...]
    dying: tuple[int, ...]
    outputs: tuple[int, ...]
    nodes: tuple[int, ...]
    grads: tuple[tuple[int, int], ...]
    leaves: tuple[int, ...]
    recounted: tuple[tuple[int, int], ...] = ()


@dataclasses.dataclass(frozen=True)
class Part:
    """What was recorded between two boundaries."""

    instructions: tuple[Instruction, ...]
    ran: tuple[Ran, ...]


def parts_of(captured: Captured) -> list[Part]:
    """One more than there are boundaries."""
    parts, start, ran = [], 0, list[Ran]()
    for event in captured.events:
        if isinstance(event, Ran):
            ran.append(event)
            continue
        parts.append(Part(captured.instructions[start : event.position], tuple(ran)))
        start, ran = event.position, []
    return [*parts, Part(captured.instructions[start:], tuple(ran))]


class Cutter:
    """Makes pieces of one recording. ``lower`` makes them run; ``names`` are the symbols of a trace for all sizes."""

    def __init__(self, captured: Captured, lower: Lower, names: Sequence[sympy.Symbol]) -> None:
        self._captured, self._lower, self._names = captured, lower, names
        made = {out for call in captured.instructions for out in call.outs if out is not None}
        self._known = made.union(captured.inputs, *(boundary.outputs for boundary in captured.boundaries))

    def piece(self, part: Part, needed: Set[int]) -> Piece:
        """The calls of ``part`` that count. ``needed``: slots that somebody after it reads.

        Raises:
            UnsupportedError: for a value that only existed while recording.
        """
        grads = tuple((ran.node, ran.grad) for ran in part.ran if ran.grad >= 0)
        made = {out for call in part.instructions for out in call.outs if out is not None}
        # A value that was made before and is only mutated here is handed on by whoever holds it.
        wanted = tuple(dict.fromkeys([slot for _, slot in grads] + sorted(made & needed)))
        program = _steal(pipeline.run(pipeline.PIECE, self._program(part, wanted)))
        program = counted(_only_read_inputs(program), map(self._captured.versions.get, wanted))
        self._refuse_unknown(program)
        renumbered = _renumbered(program)
        symbols = _used(renumbered, self._names)
        return Piece(
            runner=self._runner(renumbered, symbols),
            inputs=program.inputs,
            symbols=symbols,
            dying=tuple(sorted(set(program.inputs) - needed - set(wanted))),
            outputs=wanted,
            nodes=tuple(ran.node for ran in part.ran),
            grads=grads,
            leaves=tuple(ran.node for ran in part.ran if ran.is_leaf),
            recounted=recounted(program),
        )

    def _program(self, part: Part, outputs: Sequence[int]) -> Program:
        """The Program of a part, whose inputs are yet to be found."""
        return Program(
            name="compiled_autograd",
            slots=self._captured.slots,
            inputs=(),
            constants=self._captured.constants,
            instructions=part.instructions,
            outputs=tuple(Ref(slot) for slot in outputs),
        )

    def _refuse_unknown(self, program: Program) -> None:
        """Every input must be a walked tensor, or made by an earlier piece or boundary."""
        for slot in program.inputs:
            if slot not in self._known:
                raise UnsupportedError("value that only the capture had", program.slots[slot].name)

    def _runner(self, program: Program, symbols: Sequence[int]) -> Runner | None:
        if not program.instructions and not program.outputs:
            return None
        return self._lower(_with_symbols(program, [self._names[number] for number in symbols]))


def _steal(program: Program) -> Program:
    """Return a leaf's gradient itself, not a detached handle of it: nobody else holds it, so it is the only handle."""
    taken = {out.slot for out in program.outputs if isinstance(out, Ref)}
    made = {out for call in program.instructions for out in call.outs if out not in call.reads}
    source: dict[int, int] = {}
    left = []
    for call in program.instructions:
        slot = call.outs[0] if call.outs else None
        if call.op is _aten.detach.default and slot in taken and (base := call.args[0].slot) in made and base not in taken:
            assert slot is not None
            source[slot] = base
            taken.add(base)
        else:
            left.append(call)
    outputs = tuple(Ref(source.get(out.slot, out.slot)) if isinstance(out, Ref) else out for out in program.outputs)
    return dataclasses.replace(program, instructions=tuple(left), outputs=outputs)


def _only_read_inputs(program: Program) -> Program:
    """The same, whose inputs are what it reads and does not make."""
    made: set[int] = set()
    inputs: dict[int, None] = {}
    for call in program.instructions:
        inputs.update((slot, None) for slot in call.reads if slot not in made)
        made.update(out for out in call.outs if out is not None)
    inputs.update((out.slot, None) for out in program.outputs if isinstance(out, Ref) and out.slot not in made)
    return dataclasses.replace(program, inputs=tuple(slot for slot in inputs if slot not in program.constants))


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
    constants = {number[slot]: program.constants[slot] for slot in sorted(number) if slot in program.constants}
    slots = tuple(program.slots[slot] for slot in number)
    return Program(program.name, slots, inputs, constants, instructions, outputs)


def _used(program: Program, names: Sequence[sympy.Symbol]) -> tuple[int, ...]:
    """The numbers of the symbols that arguments and sizes depend on."""
    used = {symbol for value in program.syms for symbol in value.expr.free_symbols}
    used |= symbols_of_sizes(program)
    return tuple(number for number, name in enumerate(names) if name in used)


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
