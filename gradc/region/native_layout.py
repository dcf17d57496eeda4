"""A region as the native extension sees it: positions and numbers instead of tape nodes.

    region_spec:    (forward plan, the parts of a region) -> RegionSpec, which ``gradc._C.Region`` is made from
    direct_outputs: outputs -> what ``gradc._C.Region.direct`` is made from

The native region runs the forward and builds the live nodes in one call. Whatever it does not know it asks
``BackwardCache`` for: a Program for a new key, or the gradients themselves.
"""

from __future__ import annotations

import collections
import dataclasses
import enum
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from gradc.analysis.devices import is_elsewhere
from gradc.analysis.hoist import Hoisted
from gradc.analysis.identity_nodes import is_detour
from gradc.analysis.order import LiveNode
from gradc.analysis.outputs import AliasOfInput, AliasOfIntermediate, Constant, InputItself, Output, Value
from gradc.analysis.segments import Segment
from gradc.backward.cache import BackwardCache
from gradc.ir.metadata import symbolic_number
from gradc.ir.values import Sym
from gradc.nodes.live_call import Place
from gradc.region.returned import Returned
from gradc.tape.tape import Edge, Primal, Tape
from gradc.tape.weight_casts import Cast
from gradc.torch_private.autograd import input_metadata, sequence_nr

_NOWHERE = Place(False, -1)


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
    ``saved``: (is primal, position, owner or -1, is on ctx, the error where backward reads it or "", the entry of a value that
    is for this segment alone or -1, whether it is the primal's transpose). ``later``: (position in ``saved``, segment and entry
    of a view, and those once it is gone, or -1): see gradc.analysis.segments.LaterView. ``may_expand``: see
    nodes/csrc/expand.h. ``offset``: how many nodes eager has made in the call before the last one of the segment; ``span``: how
    many before that the first one.
    """

    entries: list[Entry]
    num_tangents: int
    exits: list[tuple[int, int, int]]
    shared: tuple[tuple[int, ...], ...]
    targets: list[tuple[int, ...]]
    saved: list[tuple[bool, int, int, bool, str, int, bool]]
    later: list[tuple[int, int, int, int, int]]
    has_hidden_saves: bool
    may_expand: bool
    offset: int
    span: int


@dataclasses.dataclass(frozen=True)
class RegionSpec:
    """What ``gradc._C.Region`` reads. ``name`` is for profiles.

    ``made`` are the primals that a direct call makes by itself, behind its arguments: (position of what it is made of, dtype of
    the cast, or None for an alias). ``live_order`` is what gradc.analysis.order says of it, each (what, number, depth, offset).
    ``num_nodes``: how many nodes eager makes in a call, where the live ones are to have the numbers of eager's; else 0.
    ``num_nodes_elsewhere``: how many more the thread of the device makes.
    ``shapes`` are the expressions whose values each call must bring.
    """

    name: str
    forward: Any
    segments: list[NativeSegment]
    symbols: list[tuple[str, int, int]]
    made: list[tuple[int, torch.dtype | None]]
    live_order: list[tuple[str, int, int, int]]
    num_nodes: int
    num_nodes_elsewhere: int
    is_nested: bool | None
    is_split_at_leaves: bool
    forced_autocast: tuple[tuple[str, torch.dtype], ...] | None
    backwards: BackwardCache
    shapes: list[Sym]


def region_spec(
    forward: Callable[..., Any],
    hoisted: Hoisted,
    segments: Sequence[Segment],
    returned: Returned,
    order: Sequence[LiveNode],
    backwards: BackwardCache,
    is_split_at_leaves: bool,
) -> RegionSpec:
    """Number everything that the nodes of a region are made of."""
    shapes: list[Sym] = []
    owner: dict[Edge | None, int] = {}
    owner |= {edge: segment.number for segment in segments for edge in segment.entries}
    alone = _values_of_one(returned, segments)
    forced = backwards.settings.backward_autocast
    return RegionSpec(
        backwards.name,
        forward,
        [
            _segment(hoisted.tape, returned, segment, owner, alone, shapes, may_expand=not backwards.is_eager)
            for segment in segments
        ],
        list(hoisted.program.symbols.values()),
        [_made(primal) for primal in hoisted.primals if primal.step is not None and is_made_natively(primal)],
        [(node.made.value, node.number, node.depth, node.offset) for node in order],
        hoisted.tape.num_nodes if any(map(is_elsewhere, segments)) else 0,
        hoisted.tape.num_nodes_elsewhere,
        hoisted.is_nested,
        is_split_at_leaves,
        None if forced is None else forced.enabled,
        backwards,
        shapes,
    )


def is_made_natively(primal: Primal) -> bool:
    """True if a direct call can make the primal, or need not."""
    return primal.step is None or isinstance(primal.step, Cast) or is_detour(primal)


def _made(primal: Primal) -> tuple[int, torch.dtype | None]:
    return primal.of, primal.step.dtype if isinstance(primal.step, Cast) else None


class DirectKind(enum.StrEnum):
    """How a direct call makes an output: the constant, an argument, a value, an earlier output again, a view, or a size."""

    CONSTANT = "plain"
    ARGUMENT = "argument"
    VALUE = "value"
    AGAIN = "again"
    VIEW = "view"
    SIZE = "size"


class DirectOutput(NamedTuple):
    """``position``: of the argument, value, earlier output or number; ``object``: the constant, or what makes the view."""

    kind: DirectKind
    position: int = 0
    is_of_argument: bool = False
    object: Any = None


def direct_outputs(outputs: Sequence[Output], numbers: list[Sym]) -> list[DirectOutput]:
    """What a direct call returns. No call that returns an ``AliasUsedInside`` is direct.

    ``numbers``: what each call computes of its sizes; those that it returns are put behind them.
    """
    first: dict[int, int] = {}
    return [_direct_output(output, first.setdefault(id(output), i), i, numbers) for i, output in enumerate(outputs)]


def _direct_output(output: Output, first: int, number: int, numbers: list[Sym]) -> DirectOutput:
    match output:
        case Constant(Sym() as size):
            numbers.append(size)
            return DirectOutput(DirectKind.SIZE, len(numbers) - 1)
        case Constant(value):
            return DirectOutput(DirectKind.CONSTANT, object=value)
        case InputItself(position):
            return DirectOutput(DirectKind.ARGUMENT, position, True)
        case Value(position):
            return DirectOutput(DirectKind.VALUE, position)
        case AliasOfInput() | AliasOfIntermediate() if first < number:
            return DirectOutput(DirectKind.AGAIN, first)
        case AliasOfInput():
            return DirectOutput(DirectKind.VIEW, output.base.primal, True, output.make)
        case AliasOfIntermediate():
            return DirectOutput(DirectKind.VIEW, output.base.position, False, output.make)
    raise AssertionError(f"{output} has its own way")


def _values_of_one(returned: Returned, segments: Sequence[Segment]) -> set[int]:
    """Positions of values that are no outputs, have one edge, are saved by one segment, and not kept by the user's code."""
    edges = collections.Counter(returned.of_edge.values())
    savers = collections.defaultdict[int, set[tuple[int, bool]]](set)
    for segment in segments:
        for index in segment.saved:
            place = returned.of_saved.get(index, _NOWHERE)
            if not place.is_primal and place.position >= returned.num_outputs:
                savers[place.position].add((segment.number, index in segment.on_ctx))
    return {position for position, by in savers.items() if edges[position] == len(by) == 1 and not any(kept for _, kept in by)}


def _segment(
    tape: Tape,
    returned: Returned,
    segment: Segment,
    owner: Mapping[Edge | None, int],
    alone: Collection[int],
    shapes: list[Sym],
    *,
    may_expand: bool,
) -> NativeSegment:
    numbers: dict[Edge | None, int] = {edge: number for number, edge in enumerate(segment.entries)}
    exits = []
    for exit_ in segment.exits:
        target, entry = exit_.entry or (-1, -1)
        exits.append((-1 if exit_.primal is None else exit_.primal, target, entry))
    saved = []
    for index in segment.saved:
        place, source = returned.of_saved.get(index, _NOWHERE), tape.saved[index]
        owned_by = owner.get(source.edge, -1)
        entry = -1 if place.is_primal or place.position not in alone else numbers.get(source.edge, -1)
        matrix = returned.transposed_at(place)
        where = (place.is_primal, place.position) if matrix is None else (True, matrix)
        saved.append((*where, owned_by, index in segment.on_ctx, source.spoilt, entry, matrix is not None))
    entries = [_entry(returned, edge, shapes) for edge in segment.entries]
    targets = list(segment.targets.values())
    later = [(segment.saved.index(i), *view.entry, *(view.once_gone or (-1, -1))) for i, view in segment.later.items()]
    numbered = list(map(sequence_nr, segment.nodes))
    return NativeSegment(
        entries, segment.num_tangents, exits, segment.shared, targets, saved, later, segment.has_hidden_saves,
        may_expand and is_elsewhere(segment), max(numbered) - tape.first_sequence_nr, max(numbered) - min(numbered),
    )  # fmt: skip


def _entry(returned: Returned, edge: Edge, shapes: list[Sym]) -> Entry:
    node, number = edge
    meta = input_metadata(node, number)
    value = returned.of_edge.get(edge, -1)
    value = value if value < len(returned.fakes) else -1
    shape = []
    for size in map(symbolic_number, meta.shape):
        if isinstance(size, Sym):
            shapes.append(size)
        shape.append(-len(shapes) if isinstance(size, Sym) else size)
    return Entry(value, shape, meta.dtype, meta.device)
