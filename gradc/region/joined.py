"""A region's forward and one backward as one Program, for calls whose backward comes right behind them.

    joined_program: (forward Program, Returned, segment, Backward) -> Program; None where the two have to stay apart

Between a forward and its backward stand tensors that nobody but the backward reads. In one Program they are values like any
other: an address, or a part of a chain. What a backward makes again is made once. The inputs are the forward's, and the
gradient of the loss; the outputs those of the region, then the gradients.

A call may turn out to need its nodes after all, and the forward then runs once more: it must do nothing but make values.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Iterator

import torch

from gradc.analysis.devices import is_elsewhere
from gradc.analysis.segments import Segment
from gradc.backward.trace import Backward
from gradc.ir.aliases import Aliases, has_own_memory
from gradc.ir.known import Names
from gradc.ir.ops import UNINITIALIZED, is_determined
from gradc.ir.program import Program
from gradc.ir.values import Instruction, Ref, Slot, Sym, renamed
from gradc.passes import pipeline
from gradc.region.returned import Returned

MOST_BYTES = 16 << 20
"""Of what the forward keeps, and of gradients: the last step's may be alive while these are made, and a thread keeps the memory
in which values lie for the next run. Beside the kernels of more, tensors cost nothing."""
MOST_BYTES_ON_DEVICES = 256 << 20
"""There no thread keeps memory, and a launch costs more than a tensor."""


def joined_program(forward: Program, returned: Returned, segment: Segment, backward: Backward) -> Program | None:
    """See the module's docstring. Of a region with this one segment."""
    if not (_only_makes_values(forward) and _only_makes_values(backward.program)):
        return None
    most_bytes = MOST_BYTES_ON_DEVICES if is_elsewhere(segment) else MOST_BYTES
    if sum(map(_num_bytes, (forward, backward.program))) > most_bytes:
        return None
    joined = _Joined(forward, backward.program)
    tangent, *saved = backward.program.inputs
    transposes: list[Instruction] = []
    for slot, position in zip(saved, backward.saved, strict=True):
        place = returned.of_saved[segment.saved[position]]
        matrix = returned.transposed_at(place)
        if matrix is not None:
            transposes.append(_transpose(forward.inputs[matrix], joined.slot_of(slot)))
        elif place.is_primal:
            joined.is_the_same(slot, forward.inputs[place.position])
        else:
            made = forward.outputs[place.position]
            assert isinstance(made, Ref), "what is saved is a tensor"
            joined.is_the_same(slot, made.slot)
    return joined.program(joined.slot_of(tangent), transposes, returned.num_outputs)


class _Joined:
    """The slots of two Programs as those of one, in which the second's follow the first's."""

    def __init__(self, first: Program, second: Program) -> None:
        self._first, self._second = first, second
        self._slots = _named_apart((*first.slots, *second.slots))
        self._new = {slot: len(first.slots) + slot for slot in range(len(second.slots))}

    def slot_of(self, slot: int) -> int:
        """The slot of the second Program here."""
        return self._new[slot]

    def is_the_same(self, slot: int, other: int) -> None:
        """An input of the second Program is this value of the first."""
        self._new[slot] = other

    def program(self, tangent: int, between: Iterable[Instruction], num_outputs: int) -> Program:
        """From the first one's inputs and the tangent to the first ``num_outputs`` of its outputs, then the second's."""
        first, second = self._first, self._second
        outputs = (*first.outputs[:num_outputs], *renamed(second.outputs, self._new))
        program = Program(
            f"{first.name}_and_{second.name}",
            self._slots,
            (*first.inputs, tangent),
            first.constants | {self._new[slot]: tensor for slot, tensor in second.constants.items()},
            (*first.instructions, *between, *map(self._moved, second.instructions)),
            outputs,
        )
        kept = [out.slot for out in outputs if isinstance(out, Ref)]
        return pipeline.run(pipeline.joined(kept), program)

    def _moved(self, call: Instruction) -> Instruction:
        outs = tuple(None if out is None else self._new[out] for out in call.outs)
        return dataclasses.replace(call, args=renamed(call.args, self._new), kwargs=renamed(call.kwargs, self._new), outs=outs)


def _named_apart(slots: Iterable[Slot]) -> tuple[Slot, ...]:
    names = Names()
    return tuple(dataclasses.replace(slot, name=names.unique(slot.name, is_tensor=slot.meta is not None)) for slot in slots)


def _transpose(matrix: int, out: int) -> Instruction:
    return Instruction(torch.ops.aten.t.default, (Ref(matrix),), {}, (out,))


def _only_makes_values(program: Program) -> bool:
    """Whether it writes into no memory but what it made itself, and gives the same when it runs again. Sizes are plain."""
    aliases = Aliases(program.instructions)
    own: set[int] = set()
    for call in program.instructions:
        if has_own_memory(call) or own.issuperset(map(aliases.root_of, call.reads)):
            own.update(out for out in call.outs if out is not None)
    are_determined = all(is_determined(call.op) or call.op in UNINITIALIZED for call in program.instructions)
    written = {aliases.root_of(slot) for call in program.instructions for slot in call.writes}
    return are_determined and written <= own and not program.symbols


def _num_bytes(program: Program) -> int:
    """Of the tensors that it returns. Its sizes are plain."""
    metas = [program.slots[out.slot].meta for out in program.outputs if isinstance(out, Ref)]
    return sum(math.prod((meta.dtype.itemsize, *_plain(meta.shape))) for meta in metas if meta is not None)


def _plain(shape: Iterable[int | Sym]) -> Iterator[int]:
    return (size for size in shape if isinstance(size, int))
