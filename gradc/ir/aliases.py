"""Which slots of a Program share memory, and until when it is read.

    bases_of: Instruction -> {view: base}        Aliases: Program -> families of slots that share memory

A family is what is made as views of one slot, directly or by way of other views, and that slot itself, the root. Families
may share memory after all: two inputs may, and so may what an op returns and its argument, whatever its schema says. Only
the memory of an op in ``ops.FRESH`` is known to be the family's own.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator

from gradc.ir.ops import FRESH, HIDDEN_VIEWS
from gradc.ir.program import Program
from gradc.ir.values import Instruction, Ref, leaves


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
        root: slot -> the slot whose family it is in.
        family: root -> its slots, itself among them.
        last_read: slot -> index of the last call that reads or makes it.
    """

    def __init__(self, program: Program) -> None:
        self.root = list(range(len(program.slots)))
        self.family = [{slot} for slot in self.root]
        self.last_read: dict[int, int] = {}
        self._positions: dict[int, set[int]] = {}
        for position, out in enumerate(program.outputs):
            if isinstance(out, Ref):
                self._positions.setdefault(out.slot, set()).add(position)
        self._fresh: set[int] = set()
        for index, call in enumerate(program.instructions):
            made = [out for out in call.outs if out is not None]
            self.last_read |= dict.fromkeys((*call.reads, *made), index)
            if call.op in FRESH:
                self._fresh.update(made)
            for view, base in bases_of(call).items():
                self._join(view, base)

    def is_free_after(self, slot: int, index: int, *, but_for: int | None = None) -> bool:
        """True if the memory of ``slot`` is its family's own, and call ``index`` or an earlier one reads it last.

        ``but_for`` is a position in the outputs that does not count.
        """
        if self.root[slot] not in self._fresh:
            return False
        family = self.family[self.root[slot]]
        is_kept = any(self._positions.get(other, set()) - {but_for} for other in family)
        return not is_kept and all(self.last_read.get(other, -1) <= index for other in family)

    def is_apart(self, slot: int, other: int) -> bool:
        """True if ``slot``, whose memory is its family's own, shares none with ``other``."""
        return self.root[slot] != self.root[other]

    def pass_on(self, slot: int, to: int) -> None:
        """``to`` is now written over ``slot``: what is a view of one is a view of the other."""
        self._join(to, slot)
        self.family[self.root[slot]].discard(slot)

    def _join(self, view: int, base: int) -> None:
        root, joined = self.root[base], self.family[self.root[view]]
        if root != self.root[view]:
            self.family[root] |= joined
            for slot in joined:
                self.root[slot] = root
