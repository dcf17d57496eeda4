"""The autograd graph that eager would build for a function, made once on fake tensors and kept: the tape.

Everything that gradc knows of a region's backward it reads off the tape: the nodes, their order, the edges between them, which
tensors they save. Beside them stand the ATen calls that the function made below autograd. ``tape.record`` makes a tape, and
nothing writes to it afterwards. See Note [The tape].
"""

from __future__ import annotations

import bisect
import dataclasses
import functools
import math
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any

import sympy
import torch
from torch.autograd.graph import get_gradient_edge

from gradc import native
from gradc.errors import UnsupportedError
from gradc.ir.aliases import Aliases
from gradc.ir.floats import StandIns
from gradc.ir.known import KnownTensors
from gradc.ir.program import Program
from gradc.ir.text import symbolic
from gradc.ir.values import Sym
from gradc.tape.node_facts import HIDES_NODE
from gradc.torch_private.autograd import is_view, sequence_nr
from gradc.torch_private.fakes import FakeTensorMode

Node = Any  # torch.autograd.graph.Node: abstract there, and the engine's nodes are not registered as its subclasses
Edge = tuple[Node, int]
_nothing = functools.partial(dataclasses.field, default_factory=lambda: MappingProxyType({}))


@dataclasses.dataclass(frozen=True)
class Saved:
    """One tensor that one tape node saved, as eager would have.

    ``slot`` is its slot in the forward Program, ``edge`` the tape edge of its value (None if it needs no gradient), and
    ``fake`` the fake tensor itself. One that ``is_on_ctx`` was not saved: the code of a custom op put it there by itself.
    ``spoilt`` is the error that eager raises where backward reads it, since it was written into after it was saved; or "".
    ``num_calls`` had been made when it was saved. ``once_gone``: of what an op in place has made of a view, the edge that its
    gradients follow once the view's node is gone.
    """

    slot: int
    edge: Edge | None
    fake: torch.Tensor
    version: int
    is_on_ctx: bool = False
    spoilt: str = ""
    num_calls: int = 0
    once_gone: Edge | None = None


@dataclasses.dataclass(frozen=True)
class Primal:
    """One input of the region. ``edge`` is where its gradient leaves the tape; None for one that needs no gradient.

    ``step(tensor, sizes)`` is given for a primal that is no argument but hoisted: the region's call makes it of the primal at
    position ``of``, as a live tensor with eager's own node. See Notes [Weight casts] and [Outputs that alias].
    """

    name: str
    fake: torch.Tensor | None
    edge: Edge | None
    of: int = -1
    step: Callable[[torch.Tensor, Callable[[Any], Any]], torch.Tensor] | None = None

    @property
    def make(self) -> Callable[[Sequence[Any], Callable[[Any], Any]], torch.Tensor] | None:
        """(the primals before it, sizes) -> the primal; None for an argument."""
        step = self.step
        return None if step is None else lambda primals, sizes: step(primals[self.of], sizes)


@dataclasses.dataclass(frozen=True)
class InnerGradient:
    """A call of torch.autograd.grad inside the function: the positions of the primals that it came to.

    ``wanted`` are those whose gradient was asked for. Torch's engine did on the tape what it does in eager, if outside of the
    region no history leads from a primal that it came to on to one that is wanted, and no hook listens at one that is wanted.
    """

    reached: frozenset[int]
    wanted: frozenset[int]

    @property
    def must_be_leaves(self) -> frozenset[int]:
        """The primals that may have no history: all, but for one that alone is wanted, since the engine ends there."""
        return frozenset(position for position in self.reached if self.wanted - {position})


def weakly(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """``function``, without keeping it alive."""
    reference = weakref.ref(function)

    def call(value: Any) -> Any:
        alive = reference()
        assert alive is not None, "the nodes of a tape are run by who holds the tape"
        return alive(value)

    return call


class Unpacker:
    """What a node gets that reads its saved tensor number i: ``give(i)``. Nodes know it weakly, by ``hook``.

    The one thing about a tape that changes, and only while somebody who holds the tape's lock runs its nodes.
    """

    def __init__(self, give: Callable[[int], torch.Tensor]) -> None:
        self.give = give
        self.hook = weakly(self)

    def __call__(self, packed: int | torch.Tensor) -> torch.Tensor:
        return self.give(packed) if isinstance(packed, int) else packed


@dataclasses.dataclass(frozen=True, eq=False)
class Tape:
    """The autograd graph of a function on fake tensors, and the calls that the function made.

    Attributes:
        fake_mode: the mode whose fake tensors these are.
        program: the calls, as a Program that returns nothing.
        known: which tensor is which slot of the Program.
        primals: the inputs.
        outputs: what the function returned, flattened: fake tensors and plain values.
        saved: the tensors that nodes saved, in the order in which eager packs them; then what lies on their ``ctx``.
        ctx_tensors: id of each tensor that was found on the ``ctx`` of a node -> the tensor, and its number in ``saved`` if
            it has one.
        casts: slot of each copy that autocast made of an argument -> the argument's position.
        aliases: what is a view of what, and what shares memory.
        rewritten: slots of the views whose memory was written into after they were made.
        outdated: slots of the outputs that are views whose nodes are made anew when they are next asked for.
        is_derivative: True if the function is itself the backward of a segment of another tape.
        is_nested: whether an autocast context was open around the function.
        inner_gradients: the calls of torch.autograd.grad that the function made.
        has_custom_ops: whether the nodes of some may lie on it, or on the tapes behind it.
        first_sequence_nr: that of the first node that can be its own.
        num_nodes: how many nodes the function made, whether or not they are still there.
        num_nodes_elsewhere: how many more the thread of a device made for it. Their numbers are higher than all others'.
        lines: the user's lines, each with the sequence number of the first node that its call could make.
        symints: the SymInt behind each symbol of the Program.
        retrace: makes the same tape with plain numbers for sizes and floats, given the number for each; None where that cannot
            be done.
        stand_ins: the floats that stood in for inputs; None where no input is a float.
        twin: the same tape with other stand-ins: what is recorded of its nodes must be the same.
        lock: held by whoever runs the nodes.
    """

    fake_mode: FakeTensorMode
    program: Program
    known: KnownTensors
    unpacker: Unpacker
    primals: tuple[Primal, ...] = ()
    outputs: tuple[Any, ...] = ()
    saved: tuple[Saved, ...] = ()
    ctx_tensors: Mapping[int, tuple[torch.Tensor, int | None]] = _nothing()
    casts: Mapping[int, int] = _nothing()
    aliases: Aliases = dataclasses.field(default_factory=Aliases)
    rewritten: frozenset[int] = frozenset()
    outdated: frozenset[int | None] = frozenset()
    is_derivative: bool = False
    is_nested: bool = False
    inner_gradients: tuple[InnerGradient, ...] = ()
    has_custom_ops: bool = False
    first_sequence_nr: int = 0
    num_nodes: int = 0
    num_nodes_elsewhere: int = 0
    lines: tuple[tuple[int, str], ...] = ()
    symints: Mapping[sympy.Symbol, torch.SymInt] = _nothing()
    retrace: Callable[[Callable[[Any], Any]], Tape] | None = None
    stand_ins: StandIns | None = None
    twin: Tape | None = None
    lock: threading.RLock = dataclasses.field(default_factory=threading.RLock)

    @property
    def weights(self) -> dict[int, bool]:
        """Position of each argument that autocast casts inside -> True if it is a weight, whose copy is cached."""
        fakes = {position: self.primals[position].fake for position in self.casts.values()}
        return {position: fake is not None and fake.is_leaf and not is_view(fake) for position, fake in fakes.items()}

    def slot_of(self, tensor: torch.Tensor) -> int | None:
        """The slot of a tensor that the calls took or made; None for any other."""
        return self.known.slot_of(tensor)

    def tensor_of(self, slot: int) -> torch.Tensor:
        """The tensor that a slot first stood for."""
        return self.known.tensor_of(slot)

    def line_of(self, node: Node) -> str:
        """The user's line whose forward made ``node``."""
        index = bisect.bisect_right(self.lines, sequence_nr(node), key=lambda line: line[0]) - 1
        return self.lines[index][1] if index >= 0 else ""

    def symbolic(self, value: int | Sym) -> Any:
        """A size as the tape's fake tensors hold it: an int, or a SymInt."""
        if isinstance(value, int):
            return value
        return eval(symbolic(value.expr), {"math": math} | {str(symbol): self.symints[symbol] for symbol in self.symints})

    @contextmanager
    def unpacking(self, give: Callable[[int], torch.Tensor]) -> Iterator[None]:
        """While inside, a node that reads its saved tensor number i gets ``give(i)``."""
        before, self.unpacker.give = self.unpacker.give, give
        try:
            yield
        finally:
            self.unpacker.give = before

    def op_of(self, node: Node) -> Node:
        """The node of the op whose gradient ``node`` makes: the one inside, for an op in place on a view; else itself."""
        return op_of(node, self.line_of(node))


def op_of(node: Node, where: str = "") -> Node:
    """See ``Tape.op_of``. ``where`` is the user's line."""
    if node not in HIDES_NODE:
        return node
    if not native.is_built():
        raise UnsupportedError("in-place op on a view, without the extension", where=where)
    return native.extension.node_in_copy_slices(node)


def edge_of(tensor: torch.Tensor) -> Edge:
    """Where the gradient of ``tensor`` goes: (node, number of the node's input)."""
    if native.is_built():
        return native.extension.gradient_edge(tensor)
    with torch.enable_grad():
        edge = get_gradient_edge(tensor)
    return edge.node, edge.output_nr
