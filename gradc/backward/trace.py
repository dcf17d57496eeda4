"""Trace the backward of one segment for one key: its tape nodes run on fake tensors, and every call they make is recorded.

trace_backward: (Tape, Segment, BackwardKey) -> Backward      a Program, and which saved tensors it takes
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import Any

import torch

from gradc.ambient import autocast_set_to
from gradc.analysis.segments import Segment
from gradc.backward.formulas import refuse_other_formulas
from gradc.backward.key import BackwardKey
from gradc.backward.run_nodes import run_nodes
from gradc.ir.aliases import Aliases, declared_views
from gradc.ir.layouts import has_free_strides
from gradc.ir.ops import LAZY_VIEWS
from gradc.ir.program import Program
from gradc.ir.recorder import Recorder
from gradc.ir.values import NO_AUTOCAST, Ref, Sym, TensorMeta
from gradc.ir.versions import counted, recounted
from gradc.nodes.packing import UNPACK
from gradc.passes import pipeline
from gradc.tape.ctx_state import watching
from gradc.tape.fakes import strided
from gradc.tape.tape import Tape
from gradc.torch_private.autograd import current_autograd_node, set_version
from gradc.torch_private.fakes import is_fake

Layouts = tuple[tuple[int, TensorMeta], ...]  # (position in ``Segment.saved``, what hooks give back there)


@dataclasses.dataclass(frozen=True)
class Backward:
    """A segment's backward for one key.

    ``program``: (defined tangents, saved tensors, symbols) -> one gradient or None per exit.
    ``saved`` are positions in ``Segment.saved``. ``released`` are those that a backward without retain_graph frees: all that
    the nodes own which eager would run; ``frees_hidden`` tells that one of these nodes saved what no hook sees. ``views`` are
    gradients that the engine must see as views, as in eager: to any other it adds in place, in the memory that it lies in.
    ``plain_views`` are the others that are views in eager: it only shows in the count of what was written into a sum that
    begins with one. ``recounted``: gradients whose version counters ``program`` leaves otherwise than eager, with eager's, and
    the tangent that eager writes the sum over where nobody else holds it, whose counter then counts on; -1 if there is none.
    """

    program: Program
    saved: tuple[int, ...]
    released: tuple[int, ...]
    frees_hidden: bool
    views: tuple[int, ...]
    plain_views: tuple[int, ...] = ()
    recounted: tuple[tuple[int, int, int], ...] = ()

    def as_in_eager(self, grads: list[Any]) -> list[Any]:
        """What a run of ``program`` has made, with eager's views and version counters."""
        for position, version in enumerate(self.program.versions):
            if version is not None:
                set_version(grads[position], version)
        for position in (*self.views, *self.plain_views):
            grads[position] = torch.ops.aten.alias.default(grads[position])
        return grads


def trace_backward(tape: Tape, segment: Segment, key: BackwardKey, name: str, layouts: Layouts | None = None) -> Backward:
    """Trace the backward of ``segment`` on fake tensors under the state that ``key`` names.

    With ``layouts``, the Program does not take the saved tensors but unpacks each where a node first asks for it. They are laid
    out as when they were packed, but for those whose positions ``layouts`` has.

    Raises:
        UnsupportedError: if a node does what cannot be traced; the caller then runs the nodes as they are.
    """
    refuse_other_formulas(tape, segment, create_graph=False)
    with tape.lock, autocast_set_to(key.ambient.autocast), tape.fake_mode, torch.no_grad():
        recorder = Recorder(name, place=lambda: _place(tape))
        recorder.lift = functools.partial(lift, recorder)
        recorder.stand_ins = tape.stand_ins
        inputs = _Inputs(tape, segment, recorder, layouts)
        tangents = [inputs.add_tangent(position, meta, key) for position, meta in enumerate(key.tangents)]
        inputs.add_kept()
        with watching(tape, segment.nodes), recorder, tape.unpacking(inputs.unpack):
            grads = run_nodes(tape, segment, tangents, key.needed, recorder=recorder)
        inputs.add_symbols()
        program = counted(recorder.program(grads), [None if grad is None else grad._version for grad in grads])
        hanging = _hanging(recorder, program)
    program = pipeline.run(pipeline.backward(segment.shared if key.adds_up else ()), program)
    return Backward(
        program,
        tuple(inputs.used),
        *released(segment, key.tangents, key.needed),
        *_views(program),
        recounted=_recounted(program, {} if key.adds_up and segment.shared else hanging),
    )


def _hanging(recorder: Recorder, program: Program) -> dict[int, int]:
    """Position of a gradient -> the tangent that eager may have written it over."""
    if not recorder.sums.hanging:
        return {}
    sums, aliases = recorder.sums, Aliases(program.instructions)
    roots = {position: aliases.root_of(out.slot) for position, out in enumerate(program.outputs) if isinstance(out, Ref)}
    return {position: sums.given[sums.hanging[root]] for position, root in roots.items() if root in sums.hanging}


def _recounted(program: Program, hanging: dict[int, int]) -> tuple[tuple[int, int, int], ...]:
    versions = dict(recounted(program))
    versions.update((position, version) for position in hanging if (version := program.versions[position]) is not None)
    return tuple((position, version, hanging.get(position, -1)) for position, version in sorted(versions.items()))


class _Inputs:
    """The inputs of a backward's Program, added as tracing meets them: tangents, saved tensors that are read, symbols.

    ``used`` are the positions of those saved tensors in ``Segment.saved``.
    """

    def __init__(self, tape: Tape, segment: Segment, recorder: Recorder, layouts: Layouts | None) -> None:
        self.tape, self.segment, self.recorder = tape, segment, recorder
        self.used: list[int] = []
        self._is_unpacked = layouts is not None
        self._number_of = {index: number for number, index in enumerate(segment.saved)}
        self._placeholders = {i: tape.saved[i].fake.detach() for i in segment.saved if i not in segment.on_ctx}
        for position, meta in layouts or ():
            self._placeholders[segment.saved[position]] = fake_tangent(tape, meta)

    def add_tangent(self, position: int, meta: TensorMeta | None, key: BackwardKey) -> torch.Tensor | None:
        if meta is None:
            return None
        tangent = fake_tangent(self.tape, meta)
        slot = self.recorder.add_input(tangent, "tangent", entry_label(self.tape, self.segment, position))
        if position in key.stealable:
            self.recorder.sums.stealable.add(slot)
        else:
            self.recorder.sums.given[slot] = position
        return tangent

    def add_kept(self) -> None:
        """What the code of custom ops keeps, which nobody unpacks."""
        for index in sorted(self.segment.on_ctx):
            self._add_saved(index, self.tape.saved[index].fake, "kept")

    def unpack(self, index: int) -> torch.Tensor:
        """The saved tensor that a node asks for."""
        placeholder = self._placeholders.get(index)
        if placeholder is None:
            return self.tape.saved[index].fake  # a node beyond the exits, which the engine visits for nothing
        if self.recorder.slot_of(placeholder) is None:
            self._add_saved(index, placeholder, "saved")
        return placeholder

    def add_symbols(self) -> None:
        for symbol in self.tape.program.symbols:
            self.recorder.symbols[symbol] = ("int", len(self.recorder.inputs), 0)
            self.recorder.add_input(0, str(symbol), "size")

    def _add_saved(self, index: int, tensor: torch.Tensor, label: str) -> None:
        self.used.append(self._number_of[index])
        if self._is_unpacked:
            self.recorder.add_call(UNPACK, (self._number_of[index],), {}, tensor, NO_AUTOCAST, *_place(self.tape))
            return
        self.recorder.add_input(tensor, saved_name(self.tape, index), label)


def released(segment: Segment, tangents: Sequence[Any], needed: Sequence[bool]) -> tuple[tuple[int, ...], bool]:
    """What the nodes that run own, those between a defined tangent and a needed exit; whether one saved what no hook sees.

    In the order in which they run: of several that were written into, eager names the first that is read.
    """
    inside = set(segment.nodes)
    reached = {edge[0] for edge, tangent in zip(segment.entries, tangents) if tangent is not None}
    for node in segment.nodes:
        if node in reached:
            reached.update(target for target, _ in node.next_functions if target in inside)
    wanted = {exit_.source for exit_, is_needed in zip(segment.exits, needed, strict=True) if is_needed}
    for node in reversed(segment.nodes):
        if any(target in wanted for target, _ in node.next_functions):
            wanted.add(node)
    run = [segment.saves[node] for node in segment.nodes if node in reached and node in wanted]
    number_of = {index: number for number, index in enumerate(segment.saved)}
    positions = dict.fromkeys(number_of[index] for saves in run for index in saves.indices if index not in segment.on_ctx)
    return tuple(positions), any(saves.has_hidden for saves in run)


def _views(program: Program) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """``Backward.views`` and ``plain_views``. The former lie as no fresh tensor does: parts, lazy conjugates, odd strides."""
    is_whole: dict[int, bool] = {}
    inputs = set(program.inputs)
    for call in program.instructions:
        for out, base in declared_views(call):
            size, size_of_base = (_numel(program.slots[slot].meta) for slot in (out, base))
            is_part = size != size_of_base or call.op in LAZY_VIEWS
            is_whole[out] = not is_part and base not in inputs and is_whole.get(base, True)
    views = [(place, out.slot) for place, out in enumerate(program.outputs) if isinstance(out, Ref) and out.slot in is_whole]
    is_plain = {slot: is_whole[slot] and not has_free_strides(program.slots[slot].meta) for _, slot in views}
    telling = tuple(place for place, slot in views if not is_plain[slot])
    return telling, tuple(place for place, slot in views if is_plain[slot])


def _numel(meta: TensorMeta | None) -> Any:
    if meta is None:
        return None
    return math.prod(size.expr if isinstance(size, Sym) else size for size in meta.shape)


def entry_label(tape: Tape, segment: Segment, position: int) -> str:
    node, _ = segment.entries[position]
    return f"gradient into {node.name()}" + (f" at {line}" if (line := tape.line_of(node)) else "")


def saved_name(tape: Tape, index: int) -> str:
    return tape.program.slots[tape.saved[index].slot].name


def fake_tangent(tape: Tape, meta: TensorMeta) -> torch.Tensor:
    """A fake tensor, as a gradient or what a hook gives back, with the layout ``meta``. Called inside the tape's fake mode."""
    size, stride = ([tape.symbolic(value) for value in values] for values in (meta.shape, meta.stride))
    return strided(size, stride, meta.dtype, meta.device, meta.is_conj, meta.is_neg)


def lift(recorder: Recorder, tensor: torch.Tensor) -> int:
    """A tensor that came neither in nor out of a recorded call: a constant, or what only nodes beyond the exits read."""
    return recorder.add_phantom(tensor) if is_fake(tensor) else recorder.add_constant(tensor)


def _place(tape: Tape) -> tuple[str, str]:
    node = current_autograd_node()
    return (tape.line_of(node), node.name()) if node is not None else ("", "")
