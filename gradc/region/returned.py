"""What a region's forward Program returns: the values of its outputs, and what backward needs of what it made.

    choose_returned: (Hoisted, Outputs, segments) -> Returned

Saved is what eager saves: each tensor that a node of a segment packed, unless it is an input of the Program: a call has those;
or was written into since: nobody may read it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import torch

from gradc.analysis.hoist import Hoisted
from gradc.analysis.outputs import Outputs
from gradc.analysis.segments import Segment
from gradc.errors import UnsupportedError
from gradc.nodes.live_call import Place
from gradc.tape.tape import Edge


@dataclasses.dataclass(frozen=True, eq=False)
class Returned:
    """What the forward Program returns.

    Attributes:
        fakes: the tape's tensors, in the order in which the Program returns them: first the ``num_outputs`` outputs' values.
        of_edge: tape edge -> position of the value it belongs to.
        of_saved: number of a saved tensor -> where a call finds it.
    """

    fakes: tuple[torch.Tensor, ...]
    num_outputs: int
    of_edge: Mapping[Edge, int]
    of_saved: Mapping[int, Place]


def choose_returned(hoisted: Hoisted, outputs: Outputs, segments: Sequence[Segment]) -> Returned:
    """See the module's docstring."""
    tape = hoisted.tape
    fakes = [fake for fake, _ in outputs.values]
    of_edge = {edge: i for i, (_, edge) in enumerate(outputs.values) if edge is not None}
    of_saved: dict[int, Place] = {}
    inputs = {slot: position for position, slot in enumerate(hoisted.program.inputs)}
    made = {primal.edge: i for i, primal in enumerate(hoisted.primals) if primal.step is not None}
    of_slot: dict[int | None, int] = {}
    for position, fake in enumerate(fakes):
        of_slot.setdefault(tape.slot_of(fake), position)
    for index in (index for segment in segments for index in segment.saved):
        saved = tape.saved[index]
        if saved.spoilt:
            continue
        primal = made.get(saved.edge, inputs.get(saved.slot))
        if primal is not None:
            of_saved[index] = Place(True, primal)
            continue
        if saved.slot not in of_slot:
            of_slot[saved.slot] = len(fakes)
            fakes.append(tape.tensor_of(saved.slot))
        of_saved[index] = Place(False, of_slot[saved.slot])
        if saved.edge is not None and of_edge.setdefault(saved.edge, of_slot[saved.slot]) != of_slot[saved.slot]:
            raise UnsupportedError("saved tensor with the history of another", tape.line_of(saved.edge[0]))
    return Returned(tuple(fakes), len(outputs.values), of_edge, of_saved)
