"""Sums of gradients, made where and as torch's engine makes them.

add_up:       (Program, groups of outputs) -> the same with each group added up into one output
add_in_place: Program -> the same with sums written over an addend that nobody reads any more
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Sequence

import torch

from gradc.ir.aliases import Lifetimes
from gradc.ir.layouts import has_free_strides
from gradc.ir.program import Program
from gradc.ir.values import Instruction, Ref, Slot, Sym, TensorMeta, renamed

_aten = torch.ops.aten


def add_up(program: Program, groups: Iterable[tuple[int, ...]]) -> Program:
    """Let the first output of each group be the sum of the group's, left to right, and the others None.

    Each addend is added as soon as it is there, so that it need not be kept. Groups stay apart if their tensors differ in
    layout, may share memory with others, or are of symbolic size.
    """
    made = {out: index for index, call in enumerate(program.instructions) for out in call.outs if out is not None}
    memory = Lifetimes(program)
    written = {slot for call in program.instructions for slot in call.writes}
    slots, outputs, versions = list(program.slots), list(program.outputs), list(program.versions)
    sums: dict[int, list[Instruction]] = {}
    for group in groups:
        refs = [out for position in group if isinstance(out := program.outputs[position], Ref)]
        metas = {program.slots[ref.slot].meta for ref in refs}
        if len(refs) != len(group) or len(metas) != 1 or written.intersection(ref.slot for ref in refs):
            continue
        if not all(ref.slot in made for ref in refs) or not _is_summable(meta := metas.pop()):
            continue
        first = total = refs[0]
        ready = max(made[first.slot], made[refs[1].slot])
        is_ours = memory.is_free_after(total.slot, ready, but_for=group[0]) and all(
            memory.is_apart(total.slot, ref.slot) for ref in refs[1:]
        )
        if not is_ours:
            slots.append(Slot(_name_of_sum(slots, total.slot), meta, slots[total.slot].label))
            total = Ref(len(slots) - 1)
        for number, ref in enumerate(refs[1:]):
            ready = max(ready, made[ref.slot])
            op, addend = (_aten.add_.Tensor, total) if number or is_ours else (_aten.add.Tensor, first)
            sums.setdefault(ready, []).append(Instruction(op, (addend, ref), {}, (total.slot,), origin="AccumulateGrad"))
        outputs[group[0]] = total
        if versions:
            end = _end_of_node(program, max(made[ref.slot] for ref in refs[:2]))
            versions[group[0]] = _version_of_sum(memory, first.slot, end, group, versions)
        for position in group[1:]:
            outputs[position] = None
    if not sums:
        return program
    calls = [added for index, call in enumerate(program.instructions) for added in (call, *sums.get(index, ()))]
    return dataclasses.replace(
        program, slots=tuple(slots), outputs=tuple(outputs), instructions=tuple(calls), versions=tuple(versions)
    )


def _name_of_sum(slots: list[Slot], slot: int) -> str:
    names, name = {other.name for other in slots}, f"sum_of_{slots[slot].name}"
    others = (f"{name}_{number}" for number in itertools.count(2))
    return name if name not in names else next(other for other in others if other not in names)


def _end_of_node(program: Program, index: int) -> int:
    """The last call of the node that makes this one: only then does the engine add. By its name and line, which tell enough."""
    node = (program.instructions[index].origin, program.instructions[index].where)
    behind = itertools.takewhile(lambda call: (call.origin, call.where) == node, program.instructions[index + 1 :])
    return index + sum(1 for _ in behind)


def _version_of_sum(memory: Lifetimes, first: int, ready: int, group: Sequence[int], versions: Sequence[int | None]) -> int:
    """What eager leaves in the counter of a sum: the engine makes a new tensor, unless it is alone with the first addend."""
    is_view = first in memory.aliases.view_calls  # and holds its base
    version = versions[group[0]]
    is_written_over = version is not None and not is_view and memory.is_let_go_after(first, ready, but_for=group[0])
    return len(group) - 2 + (version + 1 if version is not None and is_written_over else 0)


def add_in_place(program: Program) -> Program:
    """Write ``a + b`` over ``a`` where a is read for the last time, as the engine does when it adds up gradients."""
    memory = Lifetimes(program)
    calls = list(program.instructions)
    over: dict[int, int] = {}  # a sum -> the addend that it is written over
    for index, call in enumerate(calls):
        if call.op is not _aten.add.Tensor or call.kwargs or len(call.args) != 2 or call.autocast.enabled:
            continue
        first, second = call.args
        (out,) = call.outs
        if not (isinstance(first, Ref) and isinstance(second, Ref)) or out is None or first == second:
            continue
        metas = {program.slots[slot].meta for slot in (first.slot, second.slot, out)}
        is_ours = memory.is_free_after(first.slot, index) and memory.is_apart(first.slot, second.slot)
        if is_ours and len(metas) == 1 and _is_summable(metas.pop()):
            over[out] = over.get(first.slot, first.slot)
            calls[index] = dataclasses.replace(call, op=_aten.add_.Tensor)
            memory.pass_on(first.slot, out)

    if not over:
        return program

    return dataclasses.replace(
        program,
        instructions=tuple(
            dataclasses.replace(
                call,
                args=renamed(call.args, over),
                kwargs=renamed(call.kwargs, over),
                outs=tuple(None if out is None else over.get(out, out) for out in call.outs),
            )
            for call in calls
        ),
        outputs=renamed(program.outputs, over),
    )


def _is_summable(meta: TensorMeta | None) -> bool:
    """True for a dense tensor of known size, whose sum with another has its layout."""
    if meta is None or has_free_strides(meta):
        return False
    if any(isinstance(number, Sym) for number in (*meta.shape, *meta.stride, meta.offset)):
        return False
    dense = 1
    for stride, size in sorted(zip(meta.stride, meta.shape, strict=True)):
        if size != 1 and stride != dense:
            return False
        dense *= size  # type: ignore[operator]
    return True
