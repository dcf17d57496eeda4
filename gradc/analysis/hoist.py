"""Decide what a call of the region makes outside the Program: casts of weights, views of arguments, detours.

    hoist: (Tape, Facts) -> Hoisted

These are tensors with nodes of their own in the live graph, as in eager: autocast's copy of a weight, which other code may
share; a view of an argument that the user gets; and an alias through which the gradient of an earlier use goes on in time. See
Notes [Weight casts] and [Outputs that alias].
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import torch

from gradc.analysis.facts import Facts, Use
from gradc.analysis.identity_nodes import HoistedInput, with_detours
from gradc.analysis.views_of_arguments import views_of_arguments
from gradc.errors import UnsupportedError
from gradc.ir.metadata import tensor_meta
from gradc.ir.program import Program
from gradc.ir.values import Instruction, Slot
from gradc.tape.tape import Primal, Tape, edge_of
from gradc.tape.weight_casts import Cast


@dataclasses.dataclass(frozen=True, eq=False)
class Hoisted:
    """A tape, and what a region's call makes outside the Program.

    Attributes:
        primals: the arguments, then what is hoisted, in the order in which a call makes it.
        program: the tape's calls but for those that make what is hoisted, which are inputs here.
        detours: a node's next edge (node, position) -> the primal it goes through on its way to an argument.
        is_nested: whether an autocast context must be open around a call, if weights are cast; else None.
    """

    tape: Tape
    primals: tuple[Primal, ...]
    program: Program
    detours: Mapping[Use, int]
    is_nested: bool | None = None


def hoist(tape: Tape, facts: Facts) -> Hoisted:
    """See the module's docstring."""
    casts_weights = any(tape.weights.values())
    casts = _weight_casts(facts) if casts_weights and tape.is_nested else []
    inputs, detours = with_detours(facts, [*casts, *views_of_arguments(facts, casts)])
    return Hoisted(
        tape,
        (*tape.primals, *(hoisted.primal for hoisted in inputs)),
        _taking(tape.program, inputs) if inputs else tape.program,
        detours,
        tape.is_nested if casts_weights and not tape.is_derivative else None,
    )


def _weight_casts(facts: Facts) -> list[HoistedInput]:
    """Autocast's copies of weights, made through autocast's cache: it outlives the region, so other code may share the copy.

    Raises:
        UnsupportedError: for a weight that is written into before: at the region's beginning its copy is another.
    """
    found = []
    tape, weights = facts.tape, facts.tape.weights
    for slot, position in tape.casts.items():
        if weights[position]:
            fake, weight = tape.tensor_of(slot), tape.primals[position]
            written = tape.slot_of(weight.fake) if weight.fake is not None else None
            if written is not None and (write := facts.write_before(written, slot)):
                raise UnsupportedError("weight written into before autocast casts it", weight.name, write.where)
            name = f"{weight.name} in {str(fake.dtype).split('.')[1]}"
            found.append(HoistedInput(Primal(name, fake, edge_of(fake), position, Cast(fake.dtype)), slot))
    return found


def _taking(program: Program, hoisted: Sequence[HoistedInput]) -> Program:
    """``program`` with these inputs besides, and without the calls that made them."""
    slots, inputs = list(program.slots), list(program.inputs)
    names = {slot.name for slot in slots}
    for one in hoisted:
        slot = one.slot
        if slot is None:
            slot = len(slots)
            slots.append(Slot(_new_name(one.name, names), tensor_meta(_fake(one))))
        slots[slot] = dataclasses.replace(slots[slot], label=one.primal.name)
        inputs.append(slot)
    taken = {one.slot for one in hoisted}
    calls = tuple(call for call in program.instructions if not (_is_cast(call) and call.outs[0] in taken))
    return dataclasses.replace(program, slots=tuple(slots), inputs=tuple(inputs), instructions=calls)


def _fake(hoisted: HoistedInput) -> torch.Tensor:
    assert hoisted.primal.fake is not None
    return hoisted.primal.fake


def _is_cast(call: Instruction) -> bool:
    return call.op is torch.ops.aten._to_copy.default


def _new_name(name: str, names: set[str]) -> str:
    numbered = (f"{name}_{number}" if number else name for number in range(len(names) + 1))
    found = next(each for each in numbered if each not in names)
    names.add(found)
    return found
