"""What a region's forward Program returns: the values of its outputs, and what backward needs of what it made.

    choose_returned: (Hoisted, Outputs, segments) -> Returned

Saved is what eager saves: each tensor that a node of a segment packed, unless it is an input of the Program: a call has those;
or was written into since: nobody may read it. Nor does it return the transpose of an input, such as a linear layer saves of its
weight: that is made of the input where backward reads it.
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
        transposed: positions of the primals whose transposes count as values behind ``fakes``.
    """

    fakes: tuple[torch.Tensor, ...]
    num_outputs: int
    of_edge: Mapping[Edge, int]
    of_saved: Mapping[int, Place]
    transposed: tuple[int, ...] = ()

    def transposed_at(self, place: Place) -> int | None:
        """The primal whose transpose is at this place; None for any other value."""
        number = place.position - len(self.fakes)
        return None if place.is_primal or number < 0 else self.transposed[number]


def choose_returned(
    hoisted: Hoisted, outputs: Outputs, segments: Sequence[Segment], *, returns_transposed: bool = False
) -> Returned:
    """See the module's docstring. ``returns_transposed``: as any other value."""
    tape = hoisted.tape
    transposes = {} if returns_transposed else _transposes(hoisted, segments)
    fakes = [fake for fake, _ in outputs.values]
    of_edge = {edge: i for i, (_, edge) in enumerate(outputs.values) if edge is not None}
    of_saved: dict[int, Place] = {}
    inputs = {slot: position for position, slot in enumerate(hoisted.program.inputs)}
    made = {primal.edge: i for i, primal in enumerate(hoisted.primals) if primal.step is not None}
    of_slot: dict[int | None, int] = {}
    for position, fake in enumerate(fakes):
        of_slot.setdefault(tape.slot_of(fake), position)
    later: list[int] = []
    for index in (index for segment in segments for index in segment.saved):
        saved = tape.saved[index]
        if saved.spoilt:
            continue
        primal = made.get(saved.edge, inputs.get(saved.slot))
        if primal is not None:
            of_saved[index] = Place(True, primal)
            continue
        if saved.slot in transposes and saved.slot not in of_slot and saved.edge not in of_edge:
            later.append(index)
            continue
        if saved.slot not in of_slot:
            of_slot[saved.slot] = len(fakes)
            fakes.append(tape.tensor_of(saved.slot))
        of_saved[index] = Place(False, of_slot[saved.slot])
        if saved.edge is not None and of_edge.setdefault(saved.edge, of_slot[saved.slot]) != of_slot[saved.slot]:
            raise UnsupportedError("saved tensor with the history of another", tape.line_of(saved.edge[0]))
    numbers: dict[int, int] = {}
    for index in later:
        saved = tape.saved[index]
        position = len(fakes) + numbers.setdefault(saved.slot, len(numbers))
        of_saved[index] = Place(False, position)
        if saved.edge is not None:
            of_edge[saved.edge] = position
    return Returned(tuple(fakes), len(outputs.values), of_edge, of_saved, tuple(transposes[slot] for slot in numbers))


def _transposes(hoisted: Hoisted, segments: Sequence[Segment]) -> dict[int, int]:
    """Slot of each saved transpose of a matrix among the primals -> the primal's position.

    Without those whose history leads to another segment than the one that saves it, and what the user's code keeps by itself.
    """
    matrices = {slot: i for i, slot in enumerate(hoisted.program.inputs) if _is_matrix(hoisted.primals[i].fake)}
    calls = (call for call in hoisted.program.instructions if call.op is torch.ops.aten.t.default)
    found = {call.outs[0]: matrices[call.args[0].slot] for call in calls if call.args[0].slot in matrices}
    edges: dict[int, set[Edge | None]] = {}
    for segment in segments:
        own = {None, *segment.entries}
        for index in segment.saved:
            saved = hoisted.tape.saved[index]
            edges.setdefault(saved.slot, set()).add(saved.edge)
            if index in segment.on_ctx or saved.edge not in own:
                found.pop(saved.slot, None)
    return {slot: primal for slot, primal in found.items() if slot is not None and len(edges.get(slot, ())) == 1}


def _is_matrix(fake: torch.Tensor | None) -> bool:
    return fake is not None and fake.dim() == 2 and fake.layout is torch.strided
