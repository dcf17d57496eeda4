"""What is a view of what, and what shares memory, among the slots of recorded calls; and until when their memory is read.

    declared_views: Instruction -> (view, base) pairs, by the schema of its op      bases_of: also where that does not say so
    Aliases:        calls, noted one by one -> the view calls, and families of slots that share memory
    Lifetimes:      Program -> until when the memory of a slot is read

The one answer to these questions: a tape has the Aliases of its calls, made while they were recorded, and a pass makes those
of the Program it is given. A family is what is made as views of one slot, directly or by way of other views, and that slot
itself, the root. Families may share memory after all: two inputs may, and so may what an op returns and its argument,
whatever its schema says; who sees the tensors can say so (``share``). Only the memory of an op in ``ops.FRESH`` is known to
be the family's own.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator

import torch

from gradc.ir.ops import FRESH, HIDDEN_VIEWS, MOVES_MEMORY, UNINITIALIZED
from gradc.ir.program import Program
from gradc.ir.values import Instruction, Ref, leaves

ViewStep = tuple[Instruction, int]  # a view call, and the slot of the result that counts


def bases_of(instruction: Instruction) -> dict[int, int]:
    """view -> base for each slot that the call makes as a view, also where its schema does not say so."""
    if instruction.op in HIDDEN_VIEWS:
        return {out: instruction.reads[0] for out in instruction.outs if out is not None}
    return dict(declared_views(instruction))


def declared_views(instruction: Instruction) -> Iterator[tuple[int, int]]:
    """(view, base) for each slot that the call makes as a view of another, by its schema."""
    position, name = _viewed(instruction.op)
    if position is None:
        return
    value = instruction.args[position] if position < len(instruction.args) else instruction.kwargs.get(name)
    base = next((leaf.slot for leaf in leaves(value) if isinstance(leaf, Ref)), None)
    if base is not None:
        yield from ((out, base) for out in instruction.outs if out is not None and out != base)


def has_own_memory(instruction: Instruction) -> bool:
    """True if its results share memory with nothing that was there before; other ops may, whatever their schemas say."""
    return instruction.op in FRESH or instruction.op in UNINITIALIZED


@functools.cache
def _viewed(op: object) -> tuple[int | None, str]:
    """Position and name of the argument that the op's result is a view of; None if it makes no view."""
    schema = op._schema  # type: ignore[attr-defined]
    if any(result.alias_info is not None and not result.alias_info.is_write for result in schema.returns):
        for position, argument in enumerate(schema.arguments):
            if argument.alias_info is not None and not argument.alias_info.is_write:
                return position, argument.name
    return None, ""


class Aliases:
    """See the module's docstring.

    Attributes:
        view_calls: slot of each view, by the schema of the op that makes it -> the call that does.
    """

    def __init__(self, calls: Iterable[Instruction] = ()) -> None:
        self.view_calls: dict[int, Instruction] = {}
        self._base: dict[int, int] = {}
        self._root: dict[int, int] = {}
        self._families: dict[int, set[int]] = {}
        for call in calls:
            self.note(call)

    def note(self, call: Instruction) -> None:
        """Take the next call into account."""
        for view, base in declared_views(call):
            self.view_calls[view], self._base[view] = call, base
        for view, base in bases_of(call).items():
            self.share(view, base)
        if call.op in MOVES_MEMORY:
            self.share(*call.reads[:2])

    def share(self, slot: int, other: int) -> None:
        """From here on the two share memory: the root of the second is that of both."""
        root, joined = self.root_of(other), self.root_of(slot)
        if root != joined:
            moved = self._families.pop(joined, {joined})
            self._families.setdefault(root, {root}).update(moved)
            self._root.update(dict.fromkeys(moved, root))

    def root_of(self, slot: int) -> int:
        """The slot whose family this one is in: the same for all that share memory."""
        return self._root.get(slot, slot)

    def family_of(self, slot: int) -> set[int]:
        """The slots that share memory with this one, itself among them."""
        root = self.root_of(slot)
        return self._families.get(root, {root})

    def views_to(self, slot: int) -> tuple[int, list[ViewStep]]:
        """What ``slot`` is a view of in the end, and the view calls that lead from it to ``slot``."""
        steps = []
        while slot in self.view_calls:
            steps.append((self.view_calls[slot], slot))
            slot = self._base[slot]
        return slot, steps[::-1]

    def source_of(self, slot: int) -> int:
        """The slot that ``slot`` is a detached handle of; itself, if of none."""
        while slot in self.view_calls and self.view_calls[slot].op is torch.ops.aten.detach.default:
            slot = self._base[slot]
        return slot


class Lifetimes:
    """Until when the memory of the slots of ``program`` is read.

    Attributes:
        aliases: what shares memory in it.
    """

    def __init__(self, program: Program) -> None:
        self.aliases = Aliases(program.instructions)
        self._last_read: dict[int, int] = {}
        self._positions: dict[int, set[int]] = {}
        for position, out in enumerate(program.outputs):
            if isinstance(out, Ref):
                self._positions.setdefault(out.slot, set()).add(position)
        self._fresh: set[int] = set()
        self._overwritten: set[int] = set()
        for index, call in enumerate(program.instructions):
            made = [out for out in call.outs if out is not None]
            self._last_read |= dict.fromkeys((*call.reads, *made), index)
            if call.op in FRESH:
                self._fresh.update(made)

    def is_free_after(self, slot: int, index: int, *, but_for: int | None = None) -> bool:
        """True if the memory of ``slot`` is its family's own, and call ``index`` or an earlier one reads it last.

        ``but_for`` is a position in the outputs that does not count.
        """
        return self.aliases.root_of(slot) in self._fresh and self.is_let_go_after(slot, index, but_for=but_for)

    def is_let_go_after(self, slot: int, index: int, *, but_for: int | None = None) -> bool:
        """True if call ``index`` or an earlier one is the last to read what is known to share the memory of ``slot``."""
        family = self.aliases.family_of(slot) - self._overwritten
        is_kept = any(self._positions.get(other, set()) - {but_for} for other in family)
        return not is_kept and all(self._last_read.get(other, -1) <= index for other in family)

    def is_apart(self, slot: int, other: int) -> bool:
        """True if ``slot``, whose memory is its family's own, shares none with ``other``."""
        return self.aliases.root_of(slot) != self.aliases.root_of(other)

    def pass_on(self, slot: int, to: int) -> None:
        """``to`` is now written over ``slot``: what is a view of one is a view of the other."""
        self.aliases.share(to, slot)
        self._overwritten.add(slot)
