"""Let gradients reach a tensor in eager's order where casts and views of it are made outside the region's own nodes.

    with_detours: (Facts, what is hoisted) -> the same in eager's order, detours among it; and where these stand
    is_detour:    Primal -> bool

A cast or view that is hoisted is made before the region's own nodes, so the engine runs its node after all of theirs. In
eager it runs between the uses of the arguments: later ones first, then the cast, then earlier ones. In this order gradients
reach leaves and their hooks, and those of one leaf add up. So each earlier use of any argument, and of a view that another is
made of, gets a detour: an alias of it, made before the cast, whose node only hands the gradient on, and does so when the
earlier use would. See Note [Weight casts].
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from gradc.analysis.facts import Facts, Use
from gradc.errors import UnsupportedError
from gradc.tape.tape import Primal, edge_of
from gradc.torch_private.autograd import sequence_nr


@dataclasses.dataclass(frozen=True)
class HoistedInput:
    """A primal that is no argument: a call makes it, and the Program takes it.

    ``slot`` is that of the value in the tape's Program, where some call made it; None for one that gets a new slot, called
    ``name``, since no call of the Program reads it.
    """

    primal: Primal
    slot: int | None = None
    name: str = ""


@dataclasses.dataclass(frozen=True)
class _Candidate:
    """What is hoisted, where it stood before all were put in order, and the time when eager makes it.

    ``use`` is the edge that a detour is for; then ``place`` is None.
    """

    hoisted: HoistedInput
    time: tuple[int, int]
    place: int | None
    use: Use | None = None


def with_detours(facts: Facts, hoisted: Sequence[HoistedInput]) -> tuple[tuple[HoistedInput, ...], Mapping[Use, int]]:
    """See the module's docstring: a use that has a detour, and the position of that among the primals.

    Raises:
        UnsupportedError: where eager would make the nodes in an order that a call cannot.
    """
    if not hoisted:
        return (), {}
    num_arguments = len(facts.tape.primals)
    made = [_Candidate(one, (_time_of(one.primal), 0), num_arguments + i) for i, one in enumerate(hoisted)]
    candidates = sorted([*made, *_detours(facts, hoisted)], key=lambda candidate: candidate.time)
    moved: dict[int | None, int] = {}
    moved |= {candidate.place: num_arguments + i for i, candidate in enumerate(candidates) if candidate.place is not None}
    for candidate in candidates:
        if candidate.place is not None and moved.get(candidate.hoisted.primal.of, -1) >= moved[candidate.place]:
            raise UnsupportedError("view of a view whose base is modified")  # its node is made anew, after those of its users
    detours = {candidate.use: num_arguments + i for i, candidate in enumerate(candidates) if candidate.use is not None}
    return tuple(_moved(candidate.hoisted, moved) for candidate in candidates), detours


def is_detour(primal: Primal) -> bool:
    return primal.step is _alias


def _detours(facts: Facts, hoisted: Sequence[HoistedInput]) -> Iterator[_Candidate]:
    """A detour for each use, before the last of what is hoisted, of an argument or of what something hoisted is made of."""
    primals = [*facts.tape.primals, *(one.primal for one in hoisted)]
    num_arguments = len(facts.tape.primals)
    own = {one.primal.edge[0] for one in hoisted if one.primal.edge is not None}
    last = max(_time_of(one.primal) for one in hoisted)
    sources = {one.primal.of for one in hoisted}  # those among them that are hoisted, too
    for position, source in enumerate(primals):
        is_taken = position < num_arguments or position in sources
        for node, number in facts.uses_of(source.edge) if is_taken and source.edge is not None else ():
            if node not in own and sequence_nr(node) < last:
                # Of one node's edges the engine follows the first first, so its detour is made last.
                time = sequence_nr(node), -number
                yield _Candidate(_detour(facts, source, position), time, None, (node, number))


def _time_of(primal: Primal) -> int:
    assert primal.edge is not None
    return sequence_nr(primal.edge[0])


def _detour(facts: Facts, source: Primal, position: int) -> HoistedInput:
    assert source.fake is not None
    if write := next(iter(facts.writes_into(source.fake)), None):  # the alias, a view, would get another node
        raise UnsupportedError("input written into whose casts or views are made outside", source.name, write.where)
    with torch.enable_grad(), facts.tape.fake_mode:
        alias = torch.ops.aten.alias.default(source.fake)
    return HoistedInput(Primal(f"{source.name} for earlier uses", alias, edge_of(alias), position, _alias), name="detour")


def _alias(tensor: torch.Tensor, sizes: Any) -> torch.Tensor:
    with torch.enable_grad():
        return torch.ops.aten.alias.default(tensor)


def _moved(hoisted: HoistedInput, moved: Mapping[int | None, int]) -> HoistedInput:
    primal = hoisted.primal
    return dataclasses.replace(hoisted, primal=dataclasses.replace(primal, of=moved.get(primal.of, primal.of)))
