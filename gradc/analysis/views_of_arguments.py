"""Outputs that are differentiable views of arguments: a call makes them first, as eager's own view nodes.

    views_of_arguments: (Facts, what is hoisted already) -> what is hoisted besides

In eager the view is one node: gradients from inside the region and from outside meet there, and go on as one. So are the views
on the way from the argument to it. See Note [Outputs that alias].
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch

from gradc.analysis.facts import Facts
from gradc.analysis.identity_nodes import HoistedInput
from gradc.errors import UnsupportedError
from gradc.tape.tape import Primal, edge_of
from gradc.tape.views import ViewsAgain, ViewStep, is_recorded
from gradc.torch_private.autograd import sequence_nr


def views_of_arguments(facts: Facts, hoisted: Sequence[HoistedInput]) -> list[HoistedInput]:
    """See the module's docstring; none if the views may as well be made last.

    Raises:
        UnsupportedError: for a view whose node eager makes later than its call.
    """
    tape = facts.tape
    primals = [*tape.primals, *(other.primal for other in hoisted)]
    position_of = {id(primal.fake): i for i, primal in enumerate(primals) if primal.fake is not None}
    chains = list(_chains(facts, position_of))
    if not chains or _are_last(facts, [[tape.tensor_of(slot) for _, slot in steps] for _, steps in chains]):
        return []
    again = ViewsAgain(tape)
    for position, steps in chains:
        for call, slot in steps:
            for other in call.outs:  # made with it: the region may use one, and return another
                assert other is not None, "a view"
                view = tape.tensor_of(other)
                if id(view) not in position_of and is_recorded(view):
                    if write := facts.write_before(other):  # torch then makes another history for the view
                        raise UnsupportedError("view of an input that was written into before", where=write.where)
                    position_of[id(view)] = len(primals)
                    name = f"view of {primals[position].name}"
                    primals.append(Primal(name, view, edge_of(view), position, again.step((call, other))))
            position = position_of[id(tape.tensor_of(slot))]
    return [HoistedInput(primal, name="view") for primal in primals[len(tape.primals) + len(hoisted) :]]


def refuse_history_of_its_own(view: torch.Tensor, steps: list[ViewStep]) -> None:
    """What is detached and then written into with gradient recording has the history of the write, not that of its base."""
    if is_recorded(view) and any(instruction.op is torch.ops.aten.detach.default for instruction, _ in steps):
        raise UnsupportedError("detached tensor modified in place with gradient recording")


def _chains(facts: Facts, position_of: Mapping[int, int]) -> Iterator[tuple[int, list[ViewStep]]]:
    """The outputs that are differentiable views of arguments: the argument's position, and the view calls from it."""
    outputs = facts.tape.outputs
    for out in {id(out): out for out in outputs if isinstance(out, torch.Tensor)}.values():
        if is_recorded(out) and id(out) not in position_of:
            root, steps = facts.views.path_to(out)
            position = position_of.get(id(root))
            if position is not None:
                refuse_history_of_its_own(out, steps)
                if position < len(facts.tape.primals):
                    yield position, steps


def _are_last(facts: Facts, chains: list[list[torch.Tensor]]) -> bool:
    """True if nothing in the region uses these views, and all of it comes before them: they are then made when it is done.

    Not if they are written into: made before the write, as in eager, they get another node when they are next used.
    """
    views = [view for chain in chains for view in chain]
    if not all(map(is_recorded, views)) or any(facts.writes_into(view) for view in views):
        return False
    nodes = [edge_of(view)[0] for view in views]
    numbers, own = list(map(sequence_nr, nodes)), set(nodes)
    before = max((sequence_nr(node) for users in facts.uses.values() for node, _ in users if node not in own), default=-1)
    is_unused = all(len(facts.uses_of(edge_of(view))) == (view is not chain[-1]) for chain in chains for view in chain)
    return is_unused and before < min(numbers) and numbers == sorted(set(numbers))
