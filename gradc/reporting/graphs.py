"""The graphs and ops of a report, from the Programs that were watched and the calls of eager's that they stand for.

Described(programs, eager's log): graphs, ops, source of a call, places of eager's calls
"""

from __future__ import annotations

import collections
import dataclasses
import functools
from collections.abc import Iterator

import torch

from gradc.ambient import AutocastState
from gradc.ir.text import print_program
from gradc.ir.values import Instruction, Slot, Sym, TensorMeta
from gradc.reporting.aligned import align, places
from gradc.reporting.calls import Call, Log, Made
from gradc.reporting.eagerly import EagerPlace
from gradc.reporting.lines import line_of, place_of
from gradc.reporting.model import Graph, Line, Op, Phase, Saved, Value
from gradc.reporting.programs import GraphPlace, Programs, Watched
from gradc.traces.captured import Origin

_CAST = torch.ops.aten._to_copy.default
_BY_AUTOCAST = "autocast"  # the origin of calls where autocast may have cast
_SAVED = "saved"  # the label of what forward keeps for a backward


@dataclasses.dataclass(frozen=True)
class Described:
    """See the module's docstring."""

    programs: Programs
    eager: Log[EagerPlace]

    @functools.cached_property
    def _offsets(self) -> list[int]:
        """The index of the first op of each Program."""
        offsets = [0]
        for found in self.programs.found:
            offsets.append(offsets[-1] + len(found.program.instructions))
        return offsets

    def _index(self, place: GraphPlace) -> int | None:
        return None if place.instruction is None else self._offsets[place.graph] + place.instruction

    @functools.cached_property
    def _calls(self) -> dict[int, list[int]]:
        """The calls of each op in the step, by their index."""
        calls: dict[int, list[int]] = collections.defaultdict(list)
        for number, call in enumerate(self.programs.log.calls):
            if (index := self._index(call.place)) is not None:
                calls[index].append(number)
        return calls

    @functools.cached_property
    def _aligned(self) -> dict[int, int]:
        mine, theirs = self.programs.log.calls, self.eager.calls
        lines = [place_of(self._instruction(call.place).where) if call.place.instruction is not None else "" for call in mine]
        return align(mine, theirs, lines, [place_of(call.place.where) for call in theirs])

    def _instruction(self, place: GraphPlace) -> Instruction:
        assert place.instruction is not None
        return self.programs.found[place.graph].program.instructions[place.instruction]

    def source(self, call: Call[GraphPlace]) -> tuple[int | None, Line | None]:
        """The op that a call is of, and the user's line."""
        if call.place.instruction is None:
            return None, None
        return self._index(call.place), line_of(self._instruction(call.place).where)

    def graphs(self) -> Iterator[Graph]:
        for index, found in enumerate(self.programs.found):
            origin = self.programs.origin_of(found)
            yield Graph(
                _name(origin),
                found.phase,
                "" if origin is None else origin.region,
                None if origin is None else origin.segment,
                found.num_runs,
                found.quickest if found.num_runs else None,
                tuple(self._saved(index, found)),
                found.made_in_step,
                "" if origin is None else origin.reason,
                print_program(found.program),
            )

    def _saved(self, index: int, found: Watched) -> Iterator[Saved]:
        program = found.program
        for slot in program.inputs:
            if program.slots[slot].label == _SAVED and program.slots[slot].meta is not None:
                users = [call.origin for call in program.instructions if slot in call.reads]
                yield Saved(self._values[index][slot], tuple(dict.fromkeys(users)))

    def ops(self) -> Iterator[Op]:
        partners = self._partners()
        for index, found in enumerate(self.programs.found):
            module_of: dict[str, str] = {}
            for number, instruction in enumerate(found.program.instructions):
                yield self._op(index, number, instruction, module_of, partners)

    def _op(
        self, graph: int, number: int, instruction: Instruction, module_of: dict[str, str], partners: dict[int, set[int]]
    ) -> Op:
        index, values = self._offsets[graph] + number, self._values[graph]
        numbers = self._calls.get(index, [])
        eager = [self.eager.calls[self._aligned[each]] for each in numbers if each in self._aligned]
        if eager:
            module_of[instruction.where] = eager[0].place.module
        is_backward = self.programs.found[graph].is_backward
        return Op(
            name=str(instruction.op),
            graph=graph,
            made=tuple(values[out] for out in instruction.outs if out is not None),
            read=tuple(values[slot] for slot in instruction.reads if slot in values),
            module=eager[0].place.module if eager else module_of.get(instruction.where, ""),
            line=line_of(instruction.where),
            node=instruction.origin if is_backward else "",
            autocast=_autocast(instruction, is_backward),
            seconds=sum(self.programs.log.calls[each].seconds for each in numbers) if numbers else None,
            eager_seconds=sum(call.seconds for call in eager) if eager else None,
            num_calls=len(numbers),
            partners=tuple(sorted(partners.get(index, ()))),
        )

    def _partners(self) -> dict[int, set[int]]:
        """Ops of forward and of backward whose calls belong to one autograd node, in eager."""
        made: dict[int, int] = {}  # by the number of a node, eager's first call of forward that has it
        for number, call in enumerate(self.eager.calls):
            if call.phase is Phase.FORWARD:
                made.setdefault(call.place.number, number)
        mine = {theirs: self._index(self.programs.log.calls[number].place) for number, theirs in self._aligned.items()}
        found: dict[int, set[int]] = collections.defaultdict(set)
        for number, call in enumerate(self.eager.calls):
            forward, backward = mine.get(made.get(call.place.number, -1)), mine.get(number)
            if call.phase is Phase.BACKWARD and forward is not None and backward is not None:
                found[forward].add(backward)
                found[backward].add(forward)
        return found

    @functools.cached_property
    def _sizes(self) -> list[dict[int, Made]]:
        """For each Program, the tensors of its slots in the step that was measured."""
        sizes = [dict(found.inputs) for found in self.programs.found]
        for call in self.programs.log.calls:
            if call.place.instruction is not None:
                outs = [out for out in self._instruction(call.place).outs if out is not None]
                sizes[call.place.graph] |= dict(zip(outs, call.made))
        return sizes

    @functools.cached_property
    def _values(self) -> list[dict[int, Value]]:
        """For each Program, its tensors by slot."""
        programs = (found.program for found in self.programs.found)
        return [
            {slot: _value(each, sizes.get(slot)) for slot, each in enumerate(program.slots) if each.meta is not None}
            for program, sizes in zip(programs, self._sizes, strict=True)
        ]

    def eager_source(self, call: Call[EagerPlace]) -> tuple[int | None, Line | None]:
        return None, line_of(call.place.where)

    def eager_places(self) -> list[float]:
        return places(self._aligned, len(self.programs.log.calls), len(self.eager.calls))


def _name(origin: Origin | None) -> str:
    if origin is None:
        return "a forward, made again to call saved-tensors hooks in it"
    if not origin.region:
        return f"piece {origin.number} of captured backward passes"
    backward = "" if origin.segment is None else f"backward of segment {origin.segment} of "
    return f"{backward or 'forward of '}{origin.region}"


def _value(slot: Slot, made: Made | None) -> Value:
    if made is not None:
        return Value(slot.name, made.dtype, made.shape, made.num_bytes, slot.label)
    assert slot.meta is not None
    shape = tuple(str(size.expr) if isinstance(size, Sym) else size for size in slot.meta.shape)
    return Value(slot.name, str(slot.meta.dtype).removeprefix("torch."), shape, _num_bytes(slot.meta), slot.label)


def _num_bytes(meta: TensorMeta) -> int:
    """0 where a size is symbolic."""
    number = meta.dtype.itemsize
    for size in meta.shape:
        number *= size if isinstance(size, int) else 0
    return number


def _autocast(instruction: Instruction, is_backward: bool) -> str:
    if instruction.origin == _BY_AUTOCAST and instruction.op is _CAST and not is_backward:
        return "a cast that autocast makes"
    return _in_words(instruction.autocast)


def _in_words(state: AutocastState) -> str:
    return ", ".join(f"{str(dtype).removeprefix('torch.')} on {device}" for device, dtype in state.enabled)
