"""The forward of a region that is called inside of saved-tensors hooks: the same calls, and between them those of ``pack``.

    packing_program: (Hoisted, Returned, segments, number of outputs' values) -> Program
    packed_numbers:  segments -> numbers of the saved tensors, in the order in which live nodes ask for them
    why_never_packed: Tape -> the reason why eager has to run each such call, or "" if that hangs on the hooks
    why_not_dropped:  (Tape, segments) -> the reason why eager has to run each call inside of a checkpoint, or ""

Eager calls ``pack`` for each tensor as it is saved, also for a node that no output leads to. See Note [Saved-tensors hooks].
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

import torch

from gradc.analysis.hoist import Hoisted
from gradc.analysis.segments import Segment
from gradc.ir.metadata import tensor_meta
from gradc.ir.program import Program
from gradc.ir.values import Instruction, Ref, Slot
from gradc.nodes.packing import PACK, pack_call
from gradc.passes import pipeline
from gradc.region.returned import Returned
from gradc.tape.tape import Tape


def why_never_packed(tape: Tape) -> str:
    """See the module's docstring."""
    if any(saved.spoilt for saved in tape.saved):
        return "saved tensor modified in place inside the region"  # of what a hook packed torch checks no version
    if tape.inner_gradients or any(saved.fake.layout is not torch.strided for saved in tape.saved):
        return "saved-tensors hooks"  # a gradient inside unpacks inside
    if tape.symints or any(tape.tensor_of(slot).requires_grad for call in tape.program.instructions for slot in call.writes):
        return "saved-tensors hooks"  # the next call had the sizes of this one; nodes that are made anew ask in another order
    return ""


def why_not_dropped(tape: Tape, segments: Sequence[Segment]) -> str:
    """See the module's docstring. A checkpoint counts what is packed, and may run a function compiled once and eagerly once."""
    if any(saved.spoilt for saved in tape.saved):
        return "saved tensor modified in place inside the region"
    in_eager = tuple(number for number, saved in enumerate(tape.saved) if not saved.is_on_ctx)
    return "" if packed_numbers(segments) == in_eager else "saved-tensors hooks"


def packed_numbers(segments: Sequence[Segment]) -> tuple[int, ...]:
    """See the module's docstring."""
    return tuple(index for segment in segments for index in segment.saved if index not in segment.on_ctx)


def packing_program(hoisted: Hoisted, returned: Returned, segments: Sequence[Segment], num_outputs: int) -> Program:
    """``num_outputs`` of what the forward returns are outputs' values. Of the rest, what is packed has a stand-in."""
    slots = list(hoisted.program.slots)
    calls = tuple(_with_packs(hoisted, slots))
    stand_ins = {call.args[0].slot: Ref(call.outs[0]) for call in calls if call.op is PACK and call.outs[0] is not None}
    kept = {hoisted.tape.saved[index].slot for segment in segments for index in segment.on_ctx}
    values = [Ref(slot) for slot in map(hoisted.tape.slot_of, returned.fakes) if slot is not None]
    is_packed = [position >= num_outputs and value.slot not in kept for position, value in enumerate(values)]
    outputs = tuple(stand_ins[value.slot] if packed else value for value, packed in zip(values, is_packed, strict=True))
    program = dataclasses.replace(hoisted.program, slots=tuple(slots), instructions=calls, outputs=outputs)
    return pipeline.run(pipeline.PACKING, program)


def _with_packs(hoisted: Hoisted, slots: list[Slot]) -> Iterator[Instruction]:
    """The calls of the Program, and those of ``pack`` where the tape packed. Slots for what these make are added."""
    tape = hoisted.tape
    kept = {id(call) for call in hoisted.program.instructions}
    waiting = [(number, saved) for number, saved in enumerate(tape.saved) if not saved.is_on_ctx]
    arguments = {id(primal.fake) for primal in hoisted.primals if primal.fake is not None}
    names = {slot.name for slot in slots}

    def packs(num_calls: int) -> Iterator[Instruction]:
        while waiting and waiting[0][1].num_calls <= num_calls:
            number, saved = waiting.pop(0)
            name = next(name for name in (f"packed_{number}", f"packed_{number}_of_call") if name not in names)
            slots.append(Slot(name, tensor_meta(saved.fake.new_empty(0))))
            yield pack_call(saved.slot, len(slots) - 1, number, id(saved.fake) in arguments, saved.fake.requires_grad)

    for position, call in enumerate(tape.program.instructions):
        yield from packs(position)
        if id(call) in kept:
            yield call
    yield from packs(len(tape.program.instructions))
