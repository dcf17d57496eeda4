"""What was seen while one backward pass ran live: the calls, the nodes that made them, and the state between.

    Captured: all of it, for whoever replays it (replay.spec) or proves it for other sizes (symbolic)
    Report:   the same for people

Frozen, and without the tensors. Values are numbered slots; -1 is an undefined gradient.
"""

from __future__ import annotations

import dataclasses
import enum
from typing import Any, NamedTuple

import torch

from gradc.ir.program import Program
from gradc.ir.values import Instruction, Slot
from gradc.walk.origins import RegionBackward

Slots = tuple[int, ...]


class HookKind(enum.Enum):
    """The kinds of hooks of a node, by the names that torch's graphs show."""

    TENSOR_PRE = "tensor_pre_hook"
    PRE = "pre_hook"
    POST = "post_hook"
    POST_ACCUMULATE_GRAD = "post_acc_grad_hook"

    @property
    def is_before(self) -> bool:
        """Called with what the node is given."""
        return self in (HookKind.TENSOR_PRE, HookKind.PRE)


@dataclasses.dataclass(frozen=True)
class Span:
    """Some instructions in a row: from ``start`` to before ``stop``."""

    start: int = 0
    stop: int = 0


@dataclasses.dataclass(frozen=True)
class Ran:
    """A recorded node. ``grad`` is the slot of a leaf's new ``.grad``, or -1.

    ``calls`` are the instructions it made, ``inputs`` what it was given.
    """

    node: int
    is_leaf: bool = False
    grad: int = -1
    calls: Span = Span()
    inputs: Slots = ()


@dataclasses.dataclass(frozen=True)
class Expected:
    """What a node's result must look like. ``dtype`` is None for an undefined gradient.

    ``head`` holds dtype, device and the like as bytes, ``numbers`` sizes and strides: ints; SymInts while tracing; Terms
    in a trace for all sizes.
    """

    head: bytes
    numbers: tuple[Any, ...]
    dtype: torch.dtype | None


class Waiting(NamedTuple):
    """A node that has got some of its inputs. A tuple for C++."""

    node: int
    inputs: Slots


@dataclasses.dataclass(frozen=True)
class EngineState:
    """The engine just after a boundary: what waits for other inputs, what is ready, and the results so far.

    ``newly_done`` are the nodes that ran since the boundary before, so that all boundaries together name each node once.
    ``views`` are the slots that wait and in eager are views: they hold their bases, so nothing is added to them in place.
    """

    newly_done: tuple[int, ...] = ()
    not_ready: tuple[Waiting, ...] = ()
    ready: tuple[Waiting, ...] = ()  # in heap order
    results: Slots = ()
    views: Slots = ()

    def slots(self) -> set[int]:
        """What the rest of the run needs if it has to go on live from here."""
        waiting = {slot for waiting in (*self.not_ready, *self.ready) for slot in waiting.inputs}
        return (waiting | set(self.results)) - {-1}


@dataclasses.dataclass(frozen=True)
class Boundary:
    """A node that runs live on every later run, too. ``position`` counts the instructions before it.

    One that is not ``is_needed`` is only asked for: the hooks on its inputs are called, and what they return is its result.
    ``is_stealable`` says of each input whether in eager it is the only tensor on its memory and held once, ``is_kept`` whether
    a hook kept it, and ``is_result_stealable`` the first of each output, as the node returned it when it was captured.
    ``dependent`` are the positions of outputs of which that must be so on every run: eager adds to them in place or not, and
    leaves other strides, or another version counter. ``dependent_inputs`` are those of inputs that must be kept, or not.
    """

    node: int
    position: int
    inputs: Slots
    outputs: Slots
    expected: tuple[Expected, ...] = ()
    is_stealable: tuple[bool, ...] = ()
    is_kept: tuple[bool, ...] = ()
    is_result_stealable: tuple[bool, ...] = ()
    dependent: tuple[int, ...] = ()
    dependent_inputs: tuple[int, ...] = ()
    after: EngineState = EngineState()
    is_needed: bool = True


@dataclasses.dataclass(frozen=True)
class Report:
    """A capture for people: all calls as one Program, whose inputs are the walked tensors, and where they come from.

    ``variables`` holds the slot of each leaf that was walked, ``hooks`` the kinds of hooks of each node that has any,
    ``lines`` the user's line of each node, where it is known, ``regions`` what nodes of gradc's ran.
    """

    program: Program
    names: list[str]
    events: tuple[Ran | Boundary, ...]
    variables: dict[int, int]
    results: Slots
    hooks: dict[int, tuple[HookKind, ...]]
    lines: dict[int, str]
    regions: dict[int, RegionBackward]


@dataclasses.dataclass(frozen=True)
class Captured:
    """One backward pass, recorded. ``failure`` is why it cannot be replayed, or "".

    ``inputs`` are the slots of the walked tensors; ``twins`` leads from those that are another handle of an earlier one to
    that one. ``has_offsets``: a call depends on where in their memory the inputs begin. ``versions``: of a slot that a call
    makes, its version counter in eager, as it is before the next boundary.
    """

    inputs: Slots
    twins: dict[int, int]
    slots: tuple[Slot, ...]
    constants: dict[int, torch.Tensor]
    instructions: tuple[Instruction, ...]
    events: tuple[Ran | Boundary, ...]
    results: Slots
    has_offsets: bool = False
    failure: str = ""
    versions: dict[int, int] = dataclasses.field(default_factory=dict)

    @property
    def boundaries(self) -> tuple[Boundary, ...]:
        return tuple(event for event in self.events if isinstance(event, Boundary))
