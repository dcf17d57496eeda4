"""A region as the native extension sees it: positions and numbers instead of tape nodes.

    lay_out:        (Region, forward plan) -> Layout, which ``gradc._C.Region`` is made from
    direct_outputs: outputs -> what ``gradc._C.Region.direct`` is made from

The native region runs the forward and builds the live nodes in one call. Whatever it does not know it asks
``BackwardCache`` for: a Program for a new key, or the gradients themselves.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from gradc.ambient import DEVICES, AutocastState
from gradc.analysis.order import Made, is_detour
from gradc.analysis.outputs import Derived, Output, Plain, Returned, Value
from gradc.analysis.segments import Segment
from gradc.backward.cache import BackwardCache
from gradc.ir.program import Sym
from gradc.ir.recorder import symbolic_number
from gradc.tape.tape import Primal
from gradc.tape.weight_casts import Cast

if TYPE_CHECKING:
    from gradc.region.region import Region


@dataclasses.dataclass(frozen=True)
class Entry:
    """One input of a node: the value it is the gradient of, or -1; and its metadata (size -1 - i: bound shape value i)."""

    value: int
    shape: list[int]
    dtype: torch.dtype
    device: torch.device


@dataclasses.dataclass(frozen=True)
class NativeSegment:
    """``exits``: (primal, segment, entry), -1 where it does not apply. ``shared`` and ``targets``: groups of exits.
    ``saved``: (is primal, position, owner or -1, is kept).
    """

    entries: list[Entry]
    num_tangents: int
    exits: list[tuple[int, int, int]]
    shared: tuple[tuple[int, ...], ...]
    targets: list[tuple[int, ...]]
    saved: list[tuple[bool, int, int, bool]]
    has_hidden_saves: bool


@dataclasses.dataclass(frozen=True)
class Layout:
    """What ``gradc._C.Region`` reads.

    ``made`` are the primals that a direct call makes by itself, behind its arguments: (position of what it is made of, dtype of
    the cast, or None for an alias). ``live_order`` is what gradc.analysis.order says of it. ``shapes`` are the
    expressions whose values each call must bring.
    """

    forward: Any
    segments: list[NativeSegment]
    symbols: list[tuple[str, int, int]]
    made: list[tuple[int, torch.dtype | None]]
    live_order: list[Made]
    is_nested: bool | None
    is_fine: bool
    forced_autocast: list[int]
    backwards: BackwardCache
    shapes: list[Sym]


def lay_out(region: Region, forward: Callable[..., Any]) -> Layout:
    """Number everything that the nodes of ``region`` are made of."""
    shapes: list[Sym] = []
    owner = {edge: segment.number for segment in region.segments for edge in segment.entries}
    return Layout(
        forward,
        [_segment(region, segment, owner, shapes) for segment in region.segments],
        list(region.tape.recorder.symbols.values()),
        [_made(primal) for primal in region.tape.primals if primal.step is not None and is_made_natively(primal)],
        region.live_order,
        region.tape.is_nested,
        region.is_fine,
        _forced(region.backwards.settings.backward_autocast),
        region.backwards,
        shapes,
    )


def is_made_natively(primal: Primal) -> bool:
    """True if a direct call can make the primal, or need not."""
    return primal.step is None or isinstance(primal.step, Cast) or is_detour(primal)


def _made(primal: Primal) -> tuple[int, torch.dtype | None]:
    return primal.of, primal.step.dtype if isinstance(primal.step, Cast) else None


def direct_outputs(outputs: Sequence[Output]) -> list[tuple[str, int, bool, Any]]:
    """What a direct call returns: (kind, position, whether of an argument, plain value or maker of a view).

    No call that returns an ``Inner`` is direct.
    """
    first: dict[int, int] = {}
    return [_direct_output(output, first.setdefault(id(output), i), i) for i, output in enumerate(outputs)]


def _direct_output(output: Output, first: int, number: int) -> tuple[str, int, bool, Any]:
    match output:
        case Plain(value):
            return "plain", 0, False, value
        case Returned(position):
            return "argument", position, True, None
        case Value(position):
            return "value", position, False, None
        case Derived() if first < number:
            return "again", first, False, None
        case Derived(base):
            is_of_argument = isinstance(base, Returned)
            return "view", base.primal if isinstance(base, Returned) else base.position, is_of_argument, output.make
    raise AssertionError(f"{output} has its own way")


def _segment(region: Region, segment: Segment, owner: dict[Any, int], shapes: list[Sym]) -> NativeSegment:
    exits = []
    for exit_ in segment.exits:
        target, entry = exit_.entry or (-1, -1)
        exits.append((-1 if exit_.primal is None else exit_.primal, target, entry))
    saved = []
    for index in segment.saved:
        kind, position = region.returned.of_saved[index]
        edge = region.tape.saved[index].edge
        saved.append((kind == "primal", position, owner.get(edge, -1), index in segment.kept))
    entries = [_entry(region, edge, shapes) for edge in segment.entries]
    targets = list(segment.targets.values())
    return NativeSegment(entries, segment.num_tangents, exits, segment.shared, targets, saved, segment.has_hidden_saves)


def _entry(region: Region, edge: Any, shapes: list[Sym]) -> Entry:
    node, number = edge
    meta = node._input_metadata[number]
    value = region.returned.of_edge.get(edge, -1)
    shape = []
    for size in map(symbolic_number, meta.shape):
        if isinstance(size, Sym):
            shapes.append(size)
        shape.append(-len(shapes) if isinstance(size, Sym) else size)
    return Entry(value, shape, meta.dtype, meta.device)


def _forced(state: AutocastState | None) -> list[int]:
    """The part of a native key that a setting fixes: any numbers that no ambient state has."""
    if state is None:
        return []
    return [-2, *(hash((device, str(dict(state.enabled).get(device)))) % (1 << 31) for device in DEVICES)]
