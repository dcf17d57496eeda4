"""Run a function once on fake tensors, and keep the autograd graph that this leaves behind: the tape.

    record: (function, example inputs, fake mode) -> Tape

The tape is eager's own autograd graph, made by torch's own autograd code, with fake tensors in it. Recording happens below
autograd, so the calls on it are just the ATen calls that eager makes. See Note [The tape].
"""

from __future__ import annotations

import contextlib
import dataclasses
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any

import sympy
import torch
from torch.autograd.graph import saved_tensors_hooks

from gradc import native
from gradc.ambient import autocast_set_to, autocast_state
from gradc.errors import UnsupportedError
from gradc.ir.aliases import Aliases
from gradc.ir.autocast import CallerAutocast
from gradc.ir.floats import StandIns, float_of, refuse_difference
from gradc.ir.metadata import symbolic_number, tensor_meta
from gradc.ir.values import Instruction
from gradc.tape.ctx_state import with_ctx_tensors
from gradc.tape.custom_ops import is_custom
from gradc.tape.fakes import fake_primal
from gradc.tape.node_facts import HIDES_NODE
from gradc.tape.saves import saved_by
from gradc.tape.tape import Edge, InnerGradient, Node, Primal, Saved, Tape, Unpacker, edge_of, weakly
from gradc.tape.views import ViewRecorder, is_outdated
from gradc.torch_private.autograd import (
    forget_view_node,
    is_view,
    next_sequence_nr,
    saved_tensors_hooks_enabled,
    sequence_nr,
    storage_key,
)
from gradc.torch_private.fakes import FakeTensor, FakeTensorMode, is_fake
from gradc.torch_private.modes import autocast_nested, autocast_nesting, without_anomaly_mode
from gradc.torch_private.transforms import is_in_transform

_aten = torch.ops.aten
_LEAF = "torch::autograd::AccumulateGrad"  # of which eager does not tell
_BY_AUTOCAST = "autocast"  # the origin of a cast that autocast makes
_OLD_DTYPES = (
    *(torch.float16, torch.float32, torch.float64),
    *(torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
)
_MODIFIED = (
    "one of the variables needed for gradient computation has been modified by an inplace operation: [{} {}]{} is at version "
    "{}; expected version {} instead. Hint: enable anomaly detection to find the operation that failed to compute its "
    "gradient, with torch.autograd.set_detect_anomaly(True, check_nan=False)."
)


class TapeRecorder:
    """A tape in the making. The function that is recorded gets it, to say which line of the user's it is at.

    ``recorder`` notes what it calls, ``inner_gradients`` what it differentiated; ``primals`` are its inputs. ``where`` is the
    user's line at which it is. ``num_nodes_elsewhere`` is what ``Tape`` has.
    """

    def __init__(self, fake_mode: FakeTensorMode, name: str, is_derivative: bool, is_nested: bool) -> None:
        self.fake_mode, self.is_derivative, self.is_nested = fake_mode, is_derivative, is_nested
        self.recorder = ViewRecorder(name, lift=self._lift_constant, place=self._place)
        self.primals: Sequence[Primal] = ()
        self.inner_gradients: list[InnerGradient] = []
        self.num_nodes_elsewhere = 0
        self.has_functions = False  # whether the function that is recorded calls an autograd.Function
        self.where = ""
        self._lines: list[tuple[int, str]] = []
        self._may_cast = is_derivative and is_nested

    def float_for(self, value: Any) -> float:
        """The float that an input is, which is given as its bits: what stands in for it, or the one with these bits."""
        stand_ins = self.recorder.stand_ins
        return float_of(value) if stand_ins is None else stand_ins.for_input(value)

    def enter_line(self, where: str, is_cast: bool = False, has_autocast_kernel: bool = False) -> None:
        """From here on, calls and nodes come from the user's line ``where``.

        ``is_cast``: the line's call is itself a cast; ``has_autocast_kernel``: autocast casts for the line's call.
        """
        self.where = where
        self.recorder.autocast = CallerAutocast(autocast_state(), is_at_work=has_autocast_kernel)
        self._may_cast = bool(self.recorder.autocast.state.enabled) and torch.is_autocast_cache_enabled() and not is_cast
        self._lines.append((next_sequence_nr(), where))

    def run(self, function: Callable[..., Any], primals: Sequence[Primal], fakes: Sequence[Any]) -> Tape:
        """Run ``function`` on the declared inputs: the tape as it is when it returns."""
        symints, first_sequence_nr = _symints(self.recorder, fakes), next_sequence_nr()
        self.primals = primals
        saved: list[Saved] = []
        unpacker = Unpacker(lambda index: _unchanged(*tensors[index]))
        # With their versions; without their nodes, some of which must go: see _letting_go_of_written_views.
        tensors: list[tuple[torch.Tensor, int]] = []

        def pack(tensor: torch.Tensor) -> int | torch.Tensor:
            if is_in_transform(tensor):  # for a node of the transform's own, which the function runs itself
                return tensor
            saved.append(self._saved(tensor))
            tensors.append((tensor, tensor._version))
            return len(saved) - 1

        with self.recorder, packing(pack, unpacker):
            outputs = tuple(function(self, *fakes))
            num_nodes = next_sequence_nr() - first_sequence_nr
            outdated = frozenset(self.recorder.slot_of(out) for out in outputs if is_fake(out) and is_outdated(out))
        program = self.recorder.program(())
        return Tape(
            self.fake_mode,
            program,
            self.recorder.known,
            unpacker,
            tuple(primals),
            outputs,
            tuple(saved),
            casts=MappingProxyType(dict(self._casts(primals))),
            aliases=self.recorder.aliases,
            rewritten=frozenset(self.recorder.rewritten),
            outdated=outdated,
            is_derivative=self.is_derivative,
            is_nested=self.is_nested,
            inner_gradients=tuple(self.inner_gradients),
            has_custom_ops=self.has_functions or any(is_custom(call.op) for call in program.instructions),
            first_sequence_nr=first_sequence_nr,
            num_nodes=num_nodes,
            num_nodes_elsewhere=self.num_nodes_elsewhere,
            lines=tuple(self._lines),
            symints=MappingProxyType(symints),
            stand_ins=self.recorder.stand_ins,
        )

    def _place(self) -> tuple[str, str]:
        return self.where, _BY_AUTOCAST if self._may_cast else ""

    def _lift_constant(self, tensor: torch.Tensor) -> int:
        if is_fake(tensor) and self.is_derivative:
            return self.recorder.add_phantom(tensor)
        if is_fake(tensor):
            raise UnsupportedError("tensor of unknown origin", f"shape {tuple(tensor.shape)}", self.where)
        return self.recorder.add_constant(tensor)

    def _saved(self, tensor: torch.Tensor) -> Saved:
        if tensor._is_zerotensor():  # forward mode makes them; fake tensors of backward's own forget that they are
            raise UnsupportedError("function transform", "backward reads zeros that take no memory", self.where)
        slot = self.recorder.slot_of(tensor)
        if slot is None and is_fake(tensor):
            slot = self.recorder.slot_of_alias(tensor)
        if slot is None:
            slot = self._lift_constant(tensor)
        if self.is_derivative or self.inner_gradients:
            slot = self._packed_before(slot)
        is_recorded = tensor.requires_grad and (slot in self.recorder.declared or tensor.grad_fn is not None)
        if tensor.requires_grad and not is_recorded and is_view(tensor):
            raise UnsupportedError("view made under no_grad that backward needs", where=self.where)
        num_calls = len(self.recorder.instructions)
        return Saved(slot, edge_of(tensor) if is_recorded else None, tensor, tensor._version, num_calls=num_calls)

    def _packed_before(self, slot: int) -> int:
        """An unpacked tensor is a detached handle, but its history is that of what was packed."""
        source, tensor_of = self.recorder.aliases.source_of(slot), self.recorder.tensor_of
        # As they are now: a symbol may have been found to be a number since.
        is_same = self.is_derivative or tensor_meta(tensor_of(source)) == tensor_meta(tensor_of(slot))
        return source if is_same else slot

    @staticmethod
    def is_cast_by_autocast(call: Instruction) -> bool:
        return call.origin == _BY_AUTOCAST

    def _casts(self, primals: Sequence[Primal]) -> Iterator[tuple[int, int]]:
        """The copies that autocast might keep: slot of the copy, position of the argument."""
        for call in self.recorder.instructions:
            if call.op is _aten._to_copy.default and call.origin == _BY_AUTOCAST:
                # What is saved is unpacked, in a derivative, as a handle of its own.
                source = self.recorder.aliases.source_of(call.args[0].slot) if self.is_derivative else call.args[0].slot
                position = self.recorder.declared.get(source)
                if position is not None and self._may_be_kept(call, primals[position]):
                    (slot,) = call.outs
                    assert slot is not None, "a cast returns a tensor"
                    yield slot, position

    def _may_be_kept(self, cast: Instruction, source: Primal) -> bool:
        """In a derivative, only if the copy has the history of a cast that autocast makes of an argument."""
        fake, (slot,) = source.fake, cast.outs
        assert slot is not None and fake is not None, "a cast takes and returns a tensor"
        if self.is_derivative:
            copy = self.recorder.tensor_of(slot)
            is_wanted = (copy.device.type, copy.dtype) in self.recorder.autocast.state.enabled
            if not is_wanted or copy.grad_fn is None or copy.grad_fn.next_functions[0] != source.edge:
                return False
        return fake.requires_grad and fake.dtype == torch.float32


def record(
    function: Callable[..., Any],
    inputs: Sequence[Any],
    names: Sequence[str],
    fake_mode: FakeTensorMode,
    name: str,
    edges: Sequence[Edge | None] | None = None,
    is_nested: bool | None = None,
    stand_ins: StandIns | None = None,
) -> Tape:
    """Run ``function`` on fake copies of ``inputs`` with gradient recording as it is now, and return the tape.

    ``inputs`` are tensors (real or fake: only their metadata counts), ints and SymInts. ``function`` takes
    ``(TapeRecorder, *fakes)`` and returns a flat list. ``edges``, if given, names for an input the edge through which the
    function really reads it: a saved tensor of another tape keeps that tape's edge. ``is_nested``, if given, tells whether an
    autocast context is to be taken for open around the function; else it is as there is now. ``stand_ins`` are for the inputs
    that are floats.

    Raises:
        UnsupportedError: for what cannot run on fake tensors.
    """
    is_nested = autocast_nesting() > 0 if is_nested is None else is_nested
    with without_anomaly_mode():  # whose nodes hold the node that runs, and so what the user's code keeps there
        return _record(function, inputs, names, fake_mode, name, edges, is_nested, stand_ins)


def _record(
    function: Callable[..., Any],
    inputs: Sequence[Any],
    names: Sequence[str],
    fake_mode: FakeTensorMode,
    name: str,
    edges: Sequence[Edge | None] | None,
    is_nested: bool,
    stand_ins: StandIns | None,
) -> Tape:
    recorder = TapeRecorder(fake_mode, name, edges is not None, is_nested)
    recorder.recorder.stand_ins = stand_ins
    fakes = [fake_primal(value, fake_mode) if isinstance(value, torch.Tensor) else value for value in inputs]
    with fake_mode:
        primals = []
        for fake, label, edge in zip(fakes, names, edges or [None] * len(fakes), strict=True):
            primals.append(_primal(fake, label, edge))
            recorder.recorder.add_input(fake, label, label)
        before = [_metadata(fake) for fake in fakes]
        versions = [fake._version if isinstance(fake, FakeTensor) else 0 for fake in fakes]
        tape = recorder.run(function, primals, fakes)
    _refuse_changed_primals(tape, fakes, before)
    if any(isinstance(fake, FakeTensor) and fake._version != version for fake, version in zip(fakes, versions)):
        _refuse_writes_by_other_names(tape, inputs, fakes)
    tape = _marking_changed_saved(tape)
    tape = _letting_go_of_written_views(tape)
    tape = with_ctx_tensors(tape, _nodes(tape, [*tape.outputs, *_roots(tape)], [saved.edge for saved in tape.saved]))
    if tape.is_derivative or not tape.symints:
        return tape
    return dataclasses.replace(tape, retrace=_retracing(function, inputs, names, tape))


def record_with_floats(
    floats: Sequence[sympy.Symbol],
    function: Callable[..., Any],
    inputs: Sequence[Any],
    names: Sequence[str],
    fake_mode: FakeTensorMode,
    name: str,
) -> Tape:
    """``record``, of a function some of whose inputs are floats: those whose bits have these symbols.

    Raises:
        UnsupportedError: if more than arguments of calls depends on them.
    """
    if not floats:
        return record(function, inputs, names, fake_mode, name)
    tape, twin = (record(function, inputs, names, fake_mode, name, stand_ins=StandIns(floats, turn)) for turn in range(2))
    refuse_difference(tape.program, twin.program)
    return dataclasses.replace(tape, twin=twin)


@contextmanager
def packing(pack: Callable[[torch.Tensor], int | torch.Tensor], unpacker: Unpacker) -> Iterator[None]:
    """While inside, what nodes save goes to ``pack``. They keep neither of the two: no collector sees what C++ nodes hold."""
    with saved_tensors_hooks_enabled(), saved_tensors_hooks(weakly(pack), unpacker.hook):
        yield


def _primal(fake: Any, label: str, edge: Edge | None) -> Primal:
    if not isinstance(fake, torch.Tensor):
        return Primal(label, None, None)
    return Primal(label, fake, edge or (edge_of(fake) if fake.requires_grad else None))


def _letting_go_of_written_views(tape: Tape) -> Tape:
    """Give what an op in place on a view saved of its result eager's history, where the view is gone when backward runs.

    The saved result knows the view's new node weakly. Once that is gone, the result is an output of the op's own node, which
    lies in the CopySlices: under create_graph its gradient goes there, past the CopySlices. The tape holds the view, and so
    its node; and it holds what was made of the view and is used for nothing, with nodes that lead to that one.
    """
    nodes = _nodes(tape, tape.outputs)
    all_saved = list(tape.saved)
    for node in [node for node in nodes if node in HIDES_NODE]:
        op = tape.op_of(node)
        for index in saved_by(tape, node).indices:
            saved = all_saved[index]
            if saved.edge is None or sequence_nr(saved.edge[0]) < sequence_nr(op) or not is_view(saved.fake):
                continue  # no result: some keep a clone of what was there before
            if saved.edge[0] in nodes:  # another node leads to the view's
                all_saved[index] = dataclasses.replace(saved, once_gone=(op, 0))
            elif not any(saved.fake is output for output in tape.outputs):
                _let_go_of_what_leads_to(saved, tape, all_saved)
                all_saved[index] = dataclasses.replace(saved, edge=(op, 0))
                forget_view_node(saved.fake)
    return dataclasses.replace(tape, saved=tuple(all_saved))


def _let_go_of_what_leads_to(view: Saved, tape: Tape, all_saved: list[Saved]) -> None:
    """Take their history from all tensors whose nodes lead to the view's, but the view itself."""
    assert view.edge is not None, "a result of an op with a node"
    for number, other in enumerate(all_saved):
        if other.edge is not None and view.edge[0] in _nodes(tape, (), [other.edge]):
            all_saved[number] = dataclasses.replace(other, edge=None)
    for tensor in tape.known.tensors():
        has_node = tensor is not view.fake and tensor.requires_grad and not is_outdated(tensor)
        if has_node and view.edge[0] in _nodes(tape, [tensor]):
            native.extension.forget_history(tensor)


def _nodes(tape: Tape, tensors: Iterable[Any], edges: Iterable[Edge | None] = ()) -> dict[Node, None]:
    """The nodes between these tensors and edges, and the primals and beyond."""
    seen: dict[Node, None] = {}
    stack = [edge_of(out)[0] for out in tensors if isinstance(out, torch.Tensor) and out.grad_fn is not None]
    stack += [edge[0] for edge in edges if edge is not None]
    while stack:
        node = stack.pop()
        if node is not None and node not in seen and sequence_nr(node) >= tape.first_sequence_nr:
            seen[node] = None
            stack += [target for target, _ in node.next_functions]
    return seen


def _roots(tape: Tape) -> Iterator[torch.Tensor]:
    """What the outputs are views of: a detached one does not lead to the nodes of the other."""
    for out in tape.outputs:
        slot = tape.slot_of(out) if isinstance(out, torch.Tensor) else None
        if slot is not None:
            yield tape.tensor_of(tape.aliases.views_to(slot)[0])


def _retracing(function: Callable[..., Any], examples: Sequence[Any], names: Sequence[str], tape: Tape) -> Any:
    """``Tape.retrace`` for a tape just recorded from ``function``: records it under the state that there is now."""
    fakes = [primal.fake for primal in tape.primals]
    numbers = [None if isinstance(example, torch.Tensor) else symbolic_number(example) for example in examples]
    state, is_nested, records = autocast_state(), tape.is_nested, torch.is_grad_enabled()

    def retrace(sizes: Callable[[Any], Any]) -> Tape:
        mode = FakeTensorMode()
        pairs = zip(fakes, numbers, strict=True)
        inputs = [sizes(number) if fake is None else fake_primal(fake, mode, sizes) for fake, number in pairs]
        with autocast_set_to(state), autocast_nested() if is_nested else contextlib.nullcontext():
            with torch.set_grad_enabled(records):
                return record(function, inputs, names, mode, tape.program.name, is_nested=is_nested)

    return retrace


def _symints(recorder: ViewRecorder, fakes: Sequence[Any]) -> dict[sympy.Symbol, torch.SymInt]:
    """The SymInt behind each symbol, read where the Program reads it."""
    found = {}
    for symbol, (kind, position, dimension) in recorder.symbols.items():
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
        storage_key(value),
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


def _refuse_writes_by_other_names(tape: Tape, inputs: Sequence[Any], fakes: list[Any]) -> None:
    """What is saved of one input, and written into through another of the same memory, eager finds changed.

    They share a version; the fakes, which have memory of their own each, do not.
    """
    memory = [storage_key(value) if isinstance(value, torch.Tensor) else None for value in inputs]
    position_of = {storage_key(fake): position for position, fake in enumerate(fakes) if isinstance(fake, FakeTensor)}
    for saved in _kept(tape) if tape.inner_gradients else tape.saved:
        kept = position_of.get(storage_key(saved.fake))
        if kept is None or memory.count(memory[kept]) == 1:
            continue
        if any(other != kept and memory[other] == memory[kept] for other in _written_behind(tape, saved.num_calls)):
            raise UnsupportedError("saved tensor modified in place inside the region", "through another input")


def _written_behind(tape: Tape, num_calls: int) -> set[int]:
    """Positions of the inputs that are written into behind the first ``num_calls`` calls."""
    instructions = tape.program.instructions
    aliases, position_of = Aliases(instructions), {slot: position for position, slot in enumerate(tape.program.inputs)}
    roots = {aliases.root_of(slot) for instruction in instructions[num_calls:] for slot in instruction.writes}
    return {position_of[root] for root in roots if root in position_of}


def _marking_changed_saved(tape: Tape) -> Tape:
    """With the error, for each value written into after it was saved, that eager raises where backward reads it.

    A derivative, or what takes gradients inside, is refused. But what only nodes saved that a gradient inside has been taken
    through may be written into: a parameter, by its update.
    """
    if tape.is_derivative or tape.inner_gradients:
        for saved in _kept(tape) if tape.inner_gradients else tape.saved:
            _unchanged(saved.fake, saved.version)
        return tape
    return dataclasses.replace(tape, saved=tuple(map(_marked, tape.saved)))


def _marked(saved: Saved) -> Saved:
    if saved.fake._version == saved.version:
        return saved
    if any(isinstance(size, torch.SymInt) for size in saved.fake.shape):
        raise UnsupportedError("saved tensor modified in place inside the region", "sizes that change stand in the error")
    node, number = saved.edge or (None, 0)
    made_by = f", which is output {number} of {_operation_of(node)}," if node is not None and node.name() != _LEAF else ""
    spoilt = _MODIFIED.format(_type_of(saved.fake), list(saved.fake.shape), made_by, saved.fake._version, saved.version)
    return dataclasses.replace(saved, edge=None, spoilt=spoilt)


def _type_of(tensor: torch.Tensor) -> str:
    """Its name in errors of eager's: ``torch.FloatTensor``, but ``CPUBFloat16Type`` for what came after the first dtypes."""
    name = tensor.type()
    if tensor.dtype in _OLD_DTYPES:
        return name
    return f"{tensor.device.type.upper()}{name.rpartition('.')[2].removesuffix('Tensor')}Type"


def _operation_of(node: Node) -> str:
    """Its name in errors of eager's: ``Exp`` of an ExpBackward0, ``Sum1`` of a SumBackward1."""
    return re.sub(r"Backward(\d*)$", lambda found: found[1].removeprefix("0"), node.name())


def _unchanged(tensor: torch.Tensor, version: int) -> torch.Tensor:
    """A saved tensor, as it was when it was saved."""
    if tensor._version != version:
        raise UnsupportedError("saved tensor modified in place inside the region")
    return tensor


def _kept(tape: Tape) -> Iterator[Saved]:
    """What is saved by the nodes that the outputs lead to, and by those that the saved values lead to in turn."""
    nodes: dict[Node, None] = {}
    new = _nodes(tape, [*tape.outputs, *_roots(tape)])
    while new:
        nodes |= new
        saved = [tape.saved[index] for node in new for index in saved_by(tape, node).indices]
        yield from saved
        found = _nodes(tape, (), [each.edge for each in saved])
        new = {node: None for node in found if node not in nodes}
