"""Run a region's forward once on fake tensors, and keep the autograd graph that this leaves behind: the tape.

    record: (function, example inputs, fake mode) -> Tape

The tape is eager's own autograd graph, made by torch's own autograd code, with fake tensors in it. Everything that
gradc knows of a region's backward it reads off the tape: the nodes, their order, the edges between them, which tensors
they save. Recording happens below autograd, so the forward Program holds just the ATen calls that eager makes.
See Note [The tape].
"""

from __future__ import annotations

import bisect
import contextlib
import dataclasses
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import sympy
import torch
from torch.autograd.graph import get_gradient_edge, saved_tensors_hooks

from gradc import native
from gradc.ambient import autocast_set_to, autocast_state
from gradc.errors import UnsupportedError
from gradc.ir.program import Instruction, Sym
from gradc.ir.recorder import symbolic_number
from gradc.ir.text import symbolic
from gradc.tape.ctx_state import kept_by
from gradc.tape.fakes import fake_primal
from gradc.tape.views import ViewRecorder, is_outdated
from gradc.tape.weight_casts import Cast
from gradc.torch_private import (
    FakeTensor,
    FakeTensorMode,
    autocast_nested,
    autocast_nesting,
    forget_view_node,
    is_fake,
    is_view,
    next_sequence_nr,
    saved_tensors_hooks_enabled,
    sequence_nr,
)

Node = Any  # torch.autograd.graph.Node: abstract there, and the engine's nodes are not registered as its subclasses
Edge = tuple[Node, int]

_aten = torch.ops.aten
_BY_AUTOCAST = "autocast"  # the origin of a cast that autocast makes


@dataclasses.dataclass(frozen=True)
class Saved:
    """One tensor that one tape node saved, as eager would have.

    ``slot`` is its slot in the forward Program, ``edge`` the tape edge of its value (None if it needs no gradient), and
    ``fake`` the fake tensor itself. One that ``is_kept`` was not saved: the code of a custom op put it on ``ctx`` by itself.
    """

    slot: int
    edge: Edge | None
    fake: torch.Tensor
    version: int
    is_kept: bool = False


@dataclasses.dataclass(frozen=True)
class Primal:
    """One input of the region. ``edge`` is where its gradient leaves the tape; None for one that needs no gradient.

    ``step(tensor, sizes)`` is given for a primal that is no argument: the region's call makes it of the primal at position
    ``of``, as a live tensor with eager's own node. See Notes [Weight casts] and [Outputs that alias].
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


class Tape:
    """The autograd graph of a region's forward on fake tensors.

    Attributes:
        fake_mode: the mode whose fake tensors these are.
        is_derivative: True if the function is itself the backward of a segment of another tape.
        recorder: what the forward called.
        primals: the inputs, casts of weights last.
        outputs: what the function returned, flattened: fake tensors and plain values.
        saved: the tensors that nodes saved, in the order in which eager packs them; then what is kept on their ``ctx``.
        weights: position of an argument that autocast casts inside -> True if it is a weight, whose copy is cached.
        is_nested: whether an autocast context was open around the function, if it casts weights; else None.
        outdated: slots of the outputs that are views whose nodes are made anew when they are next asked for.
        detours: a node's next edge (node, position) -> the primal it goes through on its way to an argument.
        has_custom_ops: whether the nodes of some may lie on it, or on the tapes behind it.
        kept: id of each tensor that was found on the ``ctx`` of a node -> the tensor, and its number if it has one.
        again: makes the same tape with plain numbers for sizes, given the number for each; None where that cannot be done.
    """

    def __init__(self, fake_mode: FakeTensorMode, name: str, is_derivative: bool = False) -> None:
        self.fake_mode, self.is_derivative = fake_mode, is_derivative
        self.lock = threading.RLock()
        self.recorder = ViewRecorder(name, lift=self._lift_constant, place=self._place)
        self.primals: list[Primal] = []
        self.outputs: list[Any] = []
        self.saved: list[Saved] = []
        self.weights: dict[int, bool] = {}
        self.is_nested: bool | None = None
        self.outdated: set[int | None] = set()
        self.detours: dict[Edge, int] = {}
        self.has_custom_ops = False
        self.kept: dict[int, tuple[torch.Tensor, int | None]] = {}
        self.again: Callable[[Callable[[Any], Any]], Tape] | None = None
        self.first_sequence_nr = 0
        self.where = ""
        self.symints: dict[sympy.Symbol, torch.SymInt] = {}
        self._lines: list[tuple[int, str]] = []
        self._may_cast = False
        self._unpacked: Callable[[int], torch.Tensor] = lambda index: self.saved[index].fake
        self._constants: list[torch.Tensor] = []

    # ---- recording

    def enter_line(self, where: str, is_cast: bool = False, has_autocast_kernel: bool = False) -> None:
        """From here on, calls and nodes come from the user's line ``where``.

        ``is_cast``: the line's call is itself a cast; ``has_autocast_kernel``: autocast casts for the line's call.
        """
        self.where = where
        self.recorder.ambient = autocast_state()
        self.recorder.is_autocast_at_work = has_autocast_kernel
        self._may_cast = bool(self.recorder.ambient.enabled) and torch.is_autocast_cache_enabled() and not is_cast
        self._lines.append((next_sequence_nr(), where))

    def line_of(self, node: Node) -> str:
        """The user's line whose forward made ``node``."""
        index = bisect.bisect_right(self._lines, sequence_nr(node), key=lambda line: line[0]) - 1
        return self._lines[index][1] if index >= 0 else ""

    def writes_into(self, tensor: torch.Tensor) -> Iterator[Instruction]:
        """The calls that write into the memory of ``tensor``."""
        storage = tensor.untyped_storage()._cdata
        for instruction in self.recorder.instructions:
            written = map(self.recorder.tensor_of, instruction.writes)
            if any(other.untyped_storage()._cdata == storage for other in written):
                yield instruction

    def symbolic(self, value: int | Sym) -> Any:
        """A size as the tape's fake tensors hold it: an int, or a SymInt."""
        if isinstance(value, int):
            return value
        return eval(symbolic(value.expr), {str(symbol): self.symints[symbol] for symbol in self.symints})

    def _place(self) -> tuple[str, str]:
        return self.where, _BY_AUTOCAST if self._may_cast else ""

    def _lift_constant(self, tensor: torch.Tensor) -> int:
        if is_fake(tensor) and self.is_derivative:
            return self.recorder.add_phantom(tensor)
        if is_fake(tensor):
            raise UnsupportedError("tensor of unknown origin", f"shape {tuple(tensor.shape)}", self.where)
        return self.recorder.add_constant(tensor)

    def _pack(self, tensor: torch.Tensor) -> int:
        slot = self.recorder.slot_of(tensor)
        if slot is None and is_fake(tensor):
            slot = self.recorder.slot_of_alias(tensor)
        if slot is None:
            slot = self._lift_constant(tensor)
        if self.is_derivative:  # an unpacked tensor is a detached handle, but its history is that of what was packed
            slot = self.recorder.source_of(slot)
        is_recorded = tensor.requires_grad and (slot in self.recorder.declared or tensor.grad_fn is not None)
        if tensor.requires_grad and not is_recorded and is_view(tensor):
            raise UnsupportedError("view made under no_grad that backward needs", where=self.where)
        edge = edge_of(tensor) if is_recorded else None
        self.saved.append(Saved(slot, edge, tensor, tensor._version))
        return len(self.saved) - 1

    def _unpack(self, index: int) -> torch.Tensor:
        return self._unpacked(index)

    @contextmanager
    def packing(self) -> Iterator[None]:
        """While inside, what nodes save goes through the tape. They do not keep it: no collector sees what C++ nodes hold."""
        with saved_tensors_hooks_enabled(), saved_tensors_hooks(_weakly(self._pack), _weakly(self._unpack)):
            yield

    @contextmanager
    def unpacking(self, unpack: Callable[[int], torch.Tensor]) -> Iterator[None]:
        """While inside, a node that reads its saved tensor number i gets ``unpack(i)``."""
        before, self._unpacked = self._unpacked, unpack
        try:
            yield
        finally:
            self._unpacked = before

    def saved_by(self, node: Node) -> tuple[list[int], bool]:
        """Which saved tensors ``node`` owns, those kept on it too, and whether it holds others, which no hook sees.

        Such others are the wrappers of numbers.
        """
        found: list[int] = []
        num_others = 0
        owner = self.op_of(node)
        is_wrapper = owner is not node

        def note(index: int) -> torch.Tensor:
            found.append(index)
            return self.saved[index].fake

        with self.unpacking(note), self.fake_mode:
            for name in _saved_attributes(type(owner)):
                values = getattr(owner, name)
                values = values if isinstance(values, (tuple, list)) else (values,)
                num_others += sum(isinstance(value, torch.Tensor) for value in values)
        has_others = num_others > len(found) or is_wrapper  # once run, it has let go of the op
        return found + kept_by(self, node), has_others

    def keep(self, tensor: torch.Tensor) -> int:
        """Count a recorded tensor among the saved, as one that is kept; returns its number."""
        slot = self.recorder.slot_of(tensor)
        assert slot is not None, "a recorded tensor"
        self.saved.append(Saved(slot, None, tensor, tensor._version, is_kept=True))
        return len(self.saved) - 1

    def op_of(self, node: Node) -> Node:
        """The node of the op whose gradient ``node`` makes: the one inside, for an op in place on a view; else itself."""
        if type(node).__name__ != "CopySlices":
            return node
        extension = native.extension()
        if extension is None:
            raise UnsupportedError("in-place op on a view, without the extension", where=self.line_of(node))
        return extension.node_in_copy_slices(node)


def _weakly(method: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """``method``, without keeping its object alive."""
    reference = weakref.WeakMethod(method)

    def call(value: Any) -> Any:
        alive = reference()
        assert alive is not None, "the nodes of a tape are run by who holds the tape"
        return alive(value)

    return call


def record(
    function: Callable[..., Any],
    inputs: Sequence[Any],
    names: Sequence[str],
    fake_mode: FakeTensorMode,
    name: str,
    edges: Sequence[Edge | None] | None = None,
    is_nested: bool | None = None,
) -> Tape:
    """Run ``function`` on fake copies of ``inputs`` with gradient recording as it is now, and return the tape.

    ``inputs`` are tensors (real or fake: only their metadata counts), ints and SymInts. ``function`` takes
    ``(tape, *fakes)`` and returns a flat list. ``edges``, if given, names for an input the edge through which the function
    really reads it: a saved tensor of another tape keeps that tape's edge. ``is_nested``, if given, tells whether an autocast
    context is to be taken for open around the function; else it is as there is now.

    Raises:
        UnsupportedError: for what cannot run on fake tensors.
    """
    tape = Tape(fake_mode, name, is_derivative=edges is not None)
    is_nested = autocast_nesting() > 0 if is_nested is None else is_nested
    tape._may_cast = tape.is_derivative and is_nested
    fakes: list[Any] = [fake_primal(value, fake_mode) if isinstance(value, torch.Tensor) else value for value in inputs]
    with fake_mode:
        for position, (fake, label) in enumerate(zip(fakes, names, strict=True)):
            edge = edges[position] if edges else None
            if isinstance(fake, torch.Tensor):
                edge = edge or (edge_of(fake) if fake.requires_grad else None)
                tape.primals.append(Primal(label, fake, edge))
            else:
                tape.primals.append(Primal(label, None, None))
            tape.recorder.add_input(fake, label, label)
        tape.symints = _symints(tape, fakes)
        tape.first_sequence_nr = next_sequence_nr()
        before = [_metadata(fake) for fake in fakes]
        with tape.recorder, tape.packing():
            tape.outputs = list(function(tape, *fakes))
            shown = [out for out in tape.outputs if is_fake(out)]
            tape.outdated = {tape.recorder.slot_of(out) for out in shown if is_outdated(out)}
    tape.has_custom_ops = any(call.op.namespace not in ("aten", "prim", "prims") for call in tape.recorder.instructions)
    _refuse_changed_primals(tape, fakes, before)
    _refuse_changed_saved(tape)
    _let_go_of_written_views(tape)
    _note_weights(tape)
    if any(tape.weights.values()):
        tape.is_nested = None if tape.is_derivative else is_nested
        if is_nested:
            _hoist_weight_casts(tape)
    return tape


def _let_go_of_written_views(tape: Tape) -> None:
    """Give what an op in place on a view saved of its result eager's history, where the view is gone when backward runs.

    The saved result knows the view's new node weakly. Once that is gone, the result is an output of the op's own node, which
    lies in the CopySlices: under create_graph its gradient goes there, past the CopySlices. The tape holds the view, and so
    its node.
    """
    nodes = _nodes(tape)
    for node in [node for node in nodes if type(node).__name__ == "CopySlices"]:
        op = tape.op_of(node)
        own = tape.saved_by(node)[0]
        for index in own:
            saved = tape.saved[index]
            if saved.edge is None or sequence_nr(saved.edge[0]) < sequence_nr(op) or saved.edge[0] in nodes:
                continue  # no result, or another node leads to the view's
            holders = (*tape.outputs, *(other.fake for number, other in enumerate(tape.saved) if number not in own))
            if not any(saved.fake is tensor for tensor in holders):
                tape.saved[index] = dataclasses.replace(saved, edge=(op, 0))
                forget_view_node(saved.fake)


def _nodes(tape: Tape) -> set[Node]:
    """The nodes between the outputs and the primals, and beyond."""
    seen: set[Node] = set()
    stack = [edge_of(out)[0] for out in tape.outputs if isinstance(out, torch.Tensor) and out.grad_fn is not None]
    while stack:
        node = stack.pop()
        if node is not None and node not in seen and sequence_nr(node) >= tape.first_sequence_nr:
            seen.add(node)
            stack += [target for target, _ in node.next_functions]
    return seen


def recorder_of(function: Callable[..., Any], examples: Sequence[Any], names: Sequence[str], tape: Tape) -> Any:
    """``Tape.again`` for a tape just recorded from ``function``: records it under the state that there is now."""
    fakes = [primal.fake for primal in tape.primals if primal.step is None]
    numbers = [None if isinstance(example, torch.Tensor) else symbolic_number(example) for example in examples]
    state, is_nested, records = autocast_state(), autocast_nesting() > 0, torch.is_grad_enabled()

    def again(sizes: Callable[[Any], Any]) -> Tape:
        mode = FakeTensorMode()
        pairs = zip(fakes, numbers, strict=True)
        inputs = [sizes(number) if fake is None else fake_primal(fake, mode, sizes) for fake, number in pairs]
        with autocast_set_to(state), autocast_nested() if is_nested else contextlib.nullcontext():
            with torch.set_grad_enabled(records):
                return record(function, inputs, names, mode, tape.recorder.name, is_nested=is_nested)

    return again


def edge_of(tensor: torch.Tensor) -> Edge:
    """Where the gradient of ``tensor`` goes: (node, number of the node's input)."""
    with torch.enable_grad():
        edge = get_gradient_edge(tensor)
    return edge.node, edge.output_nr


def _symints(tape: Tape, fakes: list[Any]) -> dict[sympy.Symbol, torch.SymInt]:
    """The SymInt behind each symbol, read where the Program reads it."""
    found = {}
    for symbol, (kind, position, dimension) in tape.recorder.symbols.items():
        source = fakes[position]
        found[symbol] = source if kind == "int" else getattr(source, kind)(dimension)
    return found


def _metadata(value: Any) -> tuple[Any, ...]:
    if not isinstance(value, FakeTensor):
        return ()
    return (
        tuple(value.size()),
        tuple(value.stride()),
        value.storage_offset(),
        value.untyped_storage()._cdata,
        value.requires_grad,
        value.grad_fn,
    )


def _refuse_changed_primals(tape: Tape, fakes: list[Any], before: list[tuple[Any, ...]]) -> None:
    """An in-place op may change an input's values; its shape, storage or history are for eager to change."""
    for fake, primal, old in zip(fakes, tape.primals, before, strict=True):
        new = _metadata(fake)
        if new[4:] != old[4:]:
            raise UnsupportedError("input mutated in place with gradient recording", primal.name)
        if new != old:
            raise UnsupportedError("input whose shape or storage is changed", primal.name)


def _refuse_changed_saved(tape: Tape) -> None:
    """In-place use of a value that backward needs: eager raises at backward, with the right words, so eager runs it."""
    for saved in tape.saved:
        if saved.fake._version != saved.version:
            raise UnsupportedError("saved tensor modified in place inside the region")


def _note_weights(tape: Tape) -> None:
    for instruction in tape.recorder.instructions:
        position = _cast_by_autocast(tape, instruction)
        if position is not None:
            fake = tape.primals[position].fake
            assert fake is not None, "a cast is of a tensor"
            tape.weights[position] = fake.is_leaf and not is_view(fake)


def _hoist_weight_casts(tape: Tape) -> None:
    """Turn autocast's copies of weights into primals, made through autocast's cache when the region is called.

    See Note [Weight casts]: the cache outlives the region, so another region or eager code may share the copy.
    """
    recorder = tape.recorder
    kept = []
    for instruction in recorder.instructions:
        position = _cast_by_autocast(tape, instruction)
        if position is None or not tape.weights[position]:
            kept.append(instruction)
            continue
        (slot,) = instruction.outs
        assert slot is not None, "a cast returns a tensor"
        fake = recorder.tensor_of(slot)
        recorder.inputs.append(slot)
        name = f"{tape.primals[position].name} in {str(fake.dtype).split('.')[1]}"
        recorder.slots[slot] = dataclasses.replace(recorder.slots[slot], label=name)
        tape.primals.append(Primal(name, fake, edge_of(fake), position, Cast(fake.dtype)))
    recorder.instructions = kept


def _cast_by_autocast(tape: Tape, instruction: Any) -> int | None:
    """Position of the argument that the instruction casts, if it is such that autocast might keep the copy."""
    if instruction.op is not _aten._to_copy.default or instruction.origin != _BY_AUTOCAST:
        return None
    slot = instruction.args[0].slot
    if tape.is_derivative:  # what is saved is unpacked as a handle of its own
        slot = tape.recorder.source_of(slot)
    position = tape.recorder.declared.get(slot)
    if position is None:
        return None
    fake = tape.primals[position].fake
    if tape.is_derivative and not _is_cast_of(tape, instruction.outs[0], position):
        return None
    return position if fake is not None and fake.requires_grad and fake.dtype == torch.float32 else None


def _is_cast_of(tape: Tape, slot: int | None, position: int) -> bool:
    """Whether the tensor of ``slot`` has the history of a cast that autocast makes of an argument."""
    assert slot is not None, "a cast returns a tensor"
    copy, source = tape.recorder.tensor_of(slot), tape.primals[position]
    is_wanted = (copy.device.type, copy.dtype) in tape.recorder.ambient.enabled
    return is_wanted and copy.grad_fn is not None and copy.grad_fn.next_functions[0] == source.edge


_SAVED_ATTRIBUTES: dict[type, tuple[str, ...]] = {}


def _saved_attributes(node_type: type) -> tuple[str, ...]:
    """The attributes through which a node of this type shows what it saved."""
    if node_type not in _SAVED_ATTRIBUTES:
        if issubclass(node_type, torch.autograd.function.BackwardCFunction):
            names: tuple[str, ...] = ("saved_tensors",)
        else:
            names = tuple(name for name in dir(node_type) if name.startswith("_saved_"))
        _SAVED_ATTRIBUTES[node_type] = names
    return _SAVED_ATTRIBUTES[node_type]
