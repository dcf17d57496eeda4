"""Passes over Programs: each a function Program -> Program that keeps values, mutations and draws of random numbers.

    refuse_phantoms: the same, if it can run at all
    drop_dead: without calls whose results nobody uses, of the kinds that eager would not notice missing
    add_up: with some outputs added up into one
    add_in_place: with sums written over an addend that nobody reads any more
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

import sympy
import torch

from gradc.errors import UnsupportedError
from gradc.ir.program import Instruction, Program, Ref, Slot, Sym, TensorMeta, map_leaves
from gradc.ir.recorder import PHANTOM

_aten = torch.ops.aten

LAZY_VIEWS = (_aten._conj.default, _aten._neg_view.default)


def drop_dead(program: Program, *, is_backward: bool) -> Program:
    """Remove calls without effect: views, aliases, and in a backward whatever only fed gradients nobody asked for.

    A forward keeps every kernel that eager runs, used or not: it may raise (an index out of bounds), and eager's would.
    """
    program = _forward_aliases(program)
    live = {out.slot for out in program.outputs if isinstance(out, Ref)}
    kept: list[Instruction] = []
    for instruction in reversed(program.instructions):
        is_used = any(out in live for out in instruction.outs if out is not None)
        if is_used or _has_effect(instruction) or not (is_backward or is_view_op(instruction.op)):
            kept.append(instruction)
            live.update(instruction.reads)
    return dataclasses.replace(program, instructions=tuple(reversed(kept)))


def refuse_phantoms(program: Program) -> Program:
    """The Program as it is, if no call needs a value that it cannot have.

    Raises:
        UnsupportedError: if one does: the user's code keeps a forward value where gradc does not see it.
    """
    for instruction in program.instructions:
        for slot in instruction.reads:
            if program.slots[slot].label == PHANTOM:
                raise UnsupportedError("forward value kept outside saved tensors", str(instruction.op), instruction.where)
    return program


def add_up(program: Program, groups: Iterable[tuple[int, ...]]) -> Program:
    """Let the first output of each group be the sum of the group's, left to right, and the others None.

    Each addend is added as soon as it is there, so that it need not be kept. Groups stay apart if their tensors differ in
    layout, may share memory with others, or are of symbolic size.
    """
    made = {out: index for index, call in enumerate(program.instructions) for out in call.outs if out is not None}
    memory = _Memory(program)
    written = {slot for call in program.instructions for slot in call.writes}
    slots, outputs = list(program.slots), list(program.outputs)
    sums: dict[int, list[Instruction]] = {}
    for group in groups:
        refs = [out for position in group if isinstance(out := program.outputs[position], Ref)]
        metas = {program.slots[ref.slot].meta for ref in refs}
        if len(refs) != len(group) or len(metas) != 1 or written.intersection(ref.slot for ref in refs):
            continue
        if not all(ref.slot in made for ref in refs) or not _is_summable(meta := metas.pop()):
            continue
        total, ready = refs[0], max(made[refs[0].slot], made[refs[1].slot])
        is_ours = memory.is_free_after(total.slot, ready, but_for=group[0]) and all(
            memory.is_apart(total.slot, ref.slot) for ref in refs[1:]
        )
        if not is_ours:
            slots.append(Slot(f"sum_of_{slots[total.slot].name}", meta, slots[total.slot].label))
            total = Ref(len(slots) - 1)
        for number, ref in enumerate(refs[1:]):
            ready = max(ready, made[ref.slot])
            op, first = (_aten.add_.Tensor, total) if number or is_ours else (_aten.add.Tensor, refs[0])
            sums.setdefault(ready, []).append(Instruction(op, (first, ref), {}, (total.slot,), origin="AccumulateGrad"))
        outputs[group[0]] = total
        for position in group[1:]:
            outputs[position] = None
    calls = [added for index, call in enumerate(program.instructions) for added in (call, *sums.get(index, ()))]
    return dataclasses.replace(program, slots=tuple(slots), outputs=tuple(outputs), instructions=tuple(calls))


def add_in_place(program: Program) -> Program:
    """Write ``a + b`` over ``a`` where a is read for the last time, as the engine does when it adds up gradients."""
    memory = _Memory(program)
    calls = list(program.instructions)
    renamed: dict[int, int] = {}
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
            renamed[out] = renamed.get(first.slot, first.slot)
            calls[index] = dataclasses.replace(call, op=_aten.add_.Tensor)
            memory.pass_on(first.slot, out)

    def read(leaf: object) -> object:
        return Ref(renamed.get(leaf.slot, leaf.slot)) if isinstance(leaf, Ref) else leaf

    return dataclasses.replace(
        program,
        instructions=tuple(
            dataclasses.replace(
                call,
                args=map_leaves(read, call.args),
                kwargs=map_leaves(read, call.kwargs),
                outs=tuple(None if out is None else renamed.get(out, out) for out in call.outs),
            )
            for call in calls
        ),
        outputs=tuple(read(out) for out in program.outputs),  # type: ignore[misc]
    )


class _Memory:
    """Which slots share memory that a call of the Program made, and when it is read for the last time."""

    def __init__(self, program: Program) -> None:
        self.owner: dict[int, int] = {}
        self.family: dict[int, set[int]] = {}
        self.last: dict[int, int] = {}
        self.outputs = program.outputs
        for index, call in enumerate(program.instructions):
            self.last |= dict.fromkeys((*call.reads, *(out for out in call.outs if out is not None)), index)
        for call in program.instructions:
            made = [out for out in call.outs if out is not None]
            if call.op in _FRESH:
                for out in made:
                    self.owner[out], self.family[out] = out, {out}
            elif (is_view_op(call.op) or call.op is _aten._unsafe_view.default) and call.reads[0] in self.owner:
                owner = self.owner[call.reads[0]]
                self.owner |= dict.fromkeys(made, owner)
                self.family[owner].update(made)

    def is_free_after(self, slot: int, index: int, *, but_for: int | None = None) -> bool:
        """True if the memory of ``slot`` was made by the Program, and call ``index`` or an earlier one reads it last.

        ``but_for`` is a position in the outputs that does not count.
        """
        if slot not in self.owner:
            return False
        kept = {out.slot for number, out in enumerate(self.outputs) if isinstance(out, Ref) and number != but_for}
        family = self.family[self.owner[slot]]
        return not family & kept and all(self.last.get(other, -1) <= index for other in family)

    def is_apart(self, slot: int, other: int) -> bool:
        """True if ``slot``, whose memory the Program made, shares none with ``other``."""
        return other not in self.family[self.owner[slot]]

    def pass_on(self, slot: int, to: int) -> None:
        """``to`` now is what ``slot`` was."""
        self.owner[to] = self.owner.pop(slot)
        family = self.family[self.owner[to]] = self.family[self.owner[to]] | {to}
        family.discard(slot)


# Ops whose results have memory of their own. (There are others that may return their argument, whatever the schema says.)
_FRESH = frozenset(
    getattr(_aten, name).default
    for name in (
        "mm", "addmm", "bmm", "select_backward", "slice_backward", "embedding_dense_backward", "native_layer_norm_backward",
        "tanh_backward", "sigmoid_backward", "threshold_backward", "gelu_backward", "convolution_backward",
        "_softmax_backward_data", "_log_softmax_backward_data",
    )
) | {_aten.add.Tensor, _aten.sub.Tensor, _aten.mul.Tensor, _aten.div.Tensor, _aten.cat.default}  # fmt: skip


def _is_summable(meta: TensorMeta | None) -> bool:
    """True for a dense tensor of known size, whose sum with another has its layout."""
    if meta is None or is_odd(meta) or any(isinstance(number, Sym) for number in (*meta.shape, *meta.stride, meta.offset)):
        return False
    dense = 1
    for stride, size in sorted(zip(meta.stride, meta.shape, strict=True)):
        if size != 1 and stride != dense:
            return False
        dense *= size  # type: ignore[operator]
    return True


def is_odd(meta: TensorMeta | None) -> bool:
    """True if a stride that no element depends on is another than in a fresh, contiguous tensor.

    Those are the strides of dimensions of size 1, and all those of an empty tensor.
    """
    if meta is None:
        return False
    usual = sympy.Integer(1)
    is_empty = 0 in meta.shape
    for size, stride in zip(reversed(meta.shape), reversed(meta.stride), strict=True):
        if (size == 1 or is_empty) and _expr(stride) != usual:
            return True
        usual *= _expr(size) if size != 0 else 1
    return False


def _expr(value: int | Sym) -> sympy.Basic:
    return value.expr if isinstance(value, Sym) else sympy.Integer(value)


def is_view_op(op: object) -> bool:
    """True if the op's result is a view of its first argument, by its schema."""
    schema = op._schema  # type: ignore[attr-defined]
    return not schema.is_mutable and any(result.alias_info is not None for result in schema.returns)


def _has_effect(instruction: Instruction) -> bool:
    op = instruction.op
    return op._schema.is_mutable or torch.Tag.nondeterministic_seeded in op.tags


def _forward_aliases(program: Program) -> Program:
    """Let every reader of ``detach(x)`` read x: below autograd they are the same tensor.

    A detach that is an output stays, since outputs must be objects of their own; so does one whose layout changes alone,
    by a call such as ``t_``.
    """
    moved = {slot for call in program.instructions if torch.Tag.inplace_view in call.op.tags for slot in call.writes}
    own = moved | {out.slot for out in program.outputs if isinstance(out, Ref)}
    alias: dict[int, int] = {}

    def read(leaf: object) -> object:
        return Ref(alias.get(leaf.slot, leaf.slot)) if isinstance(leaf, Ref) else leaf

    kept: list[Instruction] = []
    for instruction in program.instructions:
        args, kwargs = map_leaves(read, instruction.args), map_leaves(read, instruction.kwargs)
        if instruction.op is _aten.detach.default and args[0].slot not in moved and instruction.outs[0] not in own:
            (out,) = instruction.outs
            assert out is not None
            alias[out] = args[0].slot
        else:
            outs = tuple(out if out is None else alias.get(out, out) for out in instruction.outs)
            kept.append(dataclasses.replace(instruction, args=args, kwargs=kwargs, outs=outs))
    return dataclasses.replace(program, instructions=tuple(kept))
