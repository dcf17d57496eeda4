"""Memory over the calls of a step, by what it is to the user, and what is alive at the peak.

    name_known, name_left: what the step works on, and the gradients that it leaves, get their names
    curve_of:              a log of calls, and where they stand -> Curve

Seen are the tensors that the logged calls are given and make, from call to call, and what the step works on from the start.
What a kernel needs only while it runs is not seen, nor what others hold.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from gradc.parity.observe import held_values, is_trained
from gradc.parity.state import has_state_dict
from gradc.reporting.calls import Call, Log
from gradc.reporting.model import Alive, Curve, Line, Phase, Role
from gradc.reporting.storages import Block, Storages

Source = Callable[[Call[Any]], tuple[int | None, Line | None]]  # of a call: the index of its op, and the user's line


def name_known(storages: Storages, holders: Mapping[str, Any]) -> None:
    """What the step works on is there before all calls."""
    for name, tensor, role in _tensors(holders):
        _name(storages.block_of(tensor), name, role)
    name_left(storages, holders)


def name_left(storages: Storages, holders: Mapping[str, Any], call: int = -1) -> None:
    """The gradients that are there after ``call``."""
    for name, tensor, _ in _tensors(holders):
        if is_trained(tensor) and tensor.grad is not None:
            _name(storages.block_of(tensor.grad, call), f"gradient of {name}", Role.GRADIENT)


def _tensors(holders: Mapping[str, Any]) -> Iterator[tuple[str, Tensor, Role]]:
    for name, holder in holders.items():
        rest = Role.STATE if isinstance(holder, nn.Module) or has_state_dict(holder) else Role.ARGUMENT
        for label, value, _ in held_values({name: holder}):
            if isinstance(value, Tensor):
                yield label, value, Role.PARAMETER if is_trained(value) else rest


def _name(block: Block | None, name: str, role: Role) -> None:
    if block is not None and not block.name:
        block.name, block.role = name, role


def curve_of(log: Log[Any], source: Source, places: Sequence[float]) -> Curve:
    """``source`` says which op of the report a call is; ``places``, where each call stands among those of the graphs."""
    calls, blocks = log.calls, log.storages.blocks
    series = {role: tuple(_series([block for block in blocks if _role(block, calls) is role], calls)) for role in Role}
    totals = [sum(each) for each in zip(*series.values())]
    peak = max(range(len(calls)), key=totals.__getitem__, default=0)
    alive = [_alive(block, calls, source) for block in blocks if calls and block.is_alive(peak)]
    return Curve(
        tuple(itertools.accumulate(call.seconds for call in calls)),
        series,
        tuple(source(call)[0] for call in calls),
        tuple(call.phase for call in calls),
        peak,
        tuple(sorted(alive, key=lambda each: -each.num_bytes)),
        tuple(places),
    )


def _series(blocks: list[Block], calls: list[Call[Any]]) -> Iterator[int]:
    changes = [0] * (len(calls) + 1)
    for block in blocks:
        changes[max(block.first, 0)] += block.num_bytes
        changes[len(calls) if block.end is None else block.end] -= block.num_bytes
    return itertools.islice(itertools.accumulate(changes), len(calls))


def _role(block: Block, calls: list[Call[Any]]) -> Role:
    if block.role is not None:
        return block.role
    if not block.is_made:
        return Role.ARGUMENT
    return Role.ACTIVATION if calls[block.first].phase is Phase.FORWARD else Role.TEMPORARY


def _alive(block: Block, calls: list[Call[Any]], source: Source) -> Alive:
    call = calls[block.first] if block.is_made else None
    op, line = (None, None) if call is None else source(call)
    made_by = "a tensor from outside of the graphs" if call is None else f"result of {call.op}"
    return Alive(block.name or made_by, _role(block, calls), block.num_bytes, op, line)
