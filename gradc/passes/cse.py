"""Calls whose result is there already are not made again: common subexpression elimination, with eager's bits and memory.

cse: (Program, slots that stay apart) -> the same, where what was made twice is one value

A derivative of a derivative makes the same values over and over, and so does a model that calls one of its parts twice with one
input. Two calls of one op with the same numbers, and the same values as arguments, have the same bits. Their results can be
one tensor if nobody writes into either, and if the first is still in memory where the second is made.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Iterable
from typing import Any

import torch

from gradc.ir.aliases import Aliases, bases_of, has_own_memory
from gradc.ir.ops import MAY_RAISE, OVERWRITES, is_determined
from gradc.ir.program import Program
from gradc.ir.values import Instruction, Ref, Sym, renamed

_aten = torch.ops.aten


def cse(program: Program, apart: Iterable[int]) -> Program:
    """See the module's docstring. ``apart`` are slots of tensors that others than gradc may write into when it has run.

    An output that was there already is a handle of its own on what was there.
    """
    outputs = {out.slot for out in program.outputs if isinstance(out, Ref)}
    values = _Values(program, outputs, apart)
    known: dict[tuple[int, ...], tuple[int, ...]] = {}  # numbers of values -> the slots that have them
    merged: dict[int, int] = {}
    calls: list[list[Instruction]] = [[call] for call in program.instructions]
    again: set[int] = set()
    for index, call in enumerate(program.instructions):
        made = values.made_at(index, call)
        if not made:
            continue
        numbers = tuple(values.number_of(slot) for slot in made)
        first, known[numbers] = known.get(numbers), made
        if first is None:
            continue
        making = values.making[made[0]]
        if not all(values.is_alive(slot, making[0]) for slot in first):
            again.update(making)
            continue
        known[numbers] = first
        for slot, other in zip(made, first, strict=True):
            merged[slot] = other
            values.keep(other, until=slot)
        for step in making:
            calls[step] = []
        calls[index] = [_handle(call, merged[slot], slot) for slot in made if slot in outputs]
    return _reading(program, calls, merged, again) if merged else program


class _Values:
    """Which calls make which values, numbered so that equal numbers are equal values.

    Attributes:
        making: slot of each value with memory of its own -> the calls that make it: one, or also those that write into it
            before anybody reads it.
    """

    def __init__(self, program: Program, outputs: Iterable[int], apart: Iterable[int]) -> None:
        self.making: dict[int, list[int]] = {}
        aliases = Aliases(program.instructions)
        self._program, self._root = program, [aliases.root_of(slot) for slot in range(len(program.slots))]
        self._numbers: dict[Any, int] = {}
        self._number: dict[int, int] = {}
        self._last: dict[int, float] = dict.fromkeys(self._roots(outputs), math.inf)
        self._unsteady: set[int] = set()
        self._apart = set(self._roots(apart))
        self._find_what_is_written()

    def made_at(self, index: int, call: Instruction) -> tuple[int, ...]:
        """Number what the call makes. The slots of it if now they have values that can be other values, too; else ()."""
        outs = tuple(out for out in call.outs if out is not None)
        key = self._key(call)
        for position, out in enumerate(outs):
            self._number[out] = self._number_for((key, position) if key is not None and self._is_steady(out) else object())
        if key is None or not outs or any(self.making.get(out, [index - 1])[-1] != index for out in outs):
            return ()
        return outs if all(self._is_steady(out) and self._root[out] not in self._apart for out in outs) else ()

    def number_of(self, slot: int) -> int:
        """The number of the value that the slot has now."""
        if not self._is_steady(slot):
            return self._number_for(object())
        if slot not in self._number:
            self._number[slot] = self._number_for(("input", slot))
        return self._number[slot]

    def is_alive(self, slot: int, index: int) -> bool:
        """Whether the memory of the slot is read by this call or a later one."""
        return self._last.get(self._root[slot], -1) >= index

    def keep(self, slot: int, until: int) -> None:
        """The slot is read by those who read the other, too."""
        root = self._root[slot]
        self._last[root] = max(self._last.get(root, -1), self._last.get(self._root[until], -1))

    def _roots(self, slots: Iterable[int]) -> list[int]:
        return [self._root[slot] for slot in slots]

    def _is_steady(self, slot: int) -> bool:
        return self._root[slot] not in self._unsteady

    def _number_for(self, key: Any) -> int:
        return self._numbers.setdefault(key, len(self._numbers))

    def _key(self, call: Instruction) -> Any:
        """What the call's result hangs on; None if that is not known."""
        if not is_determined(call.op):
            return None
        args: Any = call.args
        if call.op in OVERWRITES:
            args = (self._program.slots[args[0].slot].meta, *args[1:])
        return call.op, self._term(args), self._term(call.kwargs), call.autocast

    def _term(self, tree: Any) -> Any:
        """An argument as what its value hangs on: 1, 1.0 and True are three, and so are 0.0 and -0.0."""
        if isinstance(tree, (tuple, list)):
            return tuple(map(self._term, tree))
        if isinstance(tree, dict):
            return tuple((name, self._term(value)) for name, value in tree.items())
        if isinstance(tree, Ref):
            return "value", self.number_of(tree.slot)
        return tree if isinstance(tree, Sym) else (type(tree), repr(tree))

    def _find_what_is_written(self) -> None:
        """What is written into has a number only until then, but for what is read by none but the calls that make it."""
        own: set[int] = set()
        written: list[int] = []
        makers: dict[int, Instruction] = {}
        for index, call in enumerate(self._program.instructions):
            writes = self._roots(call.writes)
            reads = self._roots(call.reads)
            for root in writes:
                if root in own and call.outs == (root,) and reads.count(root) == 1 and is_determined(call.op):
                    self.making[root].append(index)
                else:
                    written.append(root)
            for root in reads:
                self._last[root] = max(index, self._last.get(root, -1))
                if root not in writes:
                    own.discard(root)
            if call.op.namespace != "aten":
                self._apart.update(reads)
            for out in call.outs:
                if out is not None and not writes and self._root[out] == out:
                    self.making[out], makers[out] = [index], call
                    own.update({out} if has_own_memory(call) else ())
        given = set(self._roots((*self._program.inputs, *self._program.constants)))
        while written:  # whose memory it may be: ops may return their arguments
            root = written.pop()
            if root in self._unsteady:
                continue
            self._unsteady.add(root)
            if root in given:
                written.extend(given)  # in another call they may share memory
            elif (maker := makers.get(root)) is not None and not has_own_memory(maker):
                written.extend(self._roots(maker.reads))
        for call in self._program.instructions if self._unsteady else ():
            if not has_own_memory(call) and not self._unsteady.isdisjoint(self._roots(call.reads)):
                self._unsteady.update(self._roots(out for out in call.outs if out is not None))


def _handle(call: Instruction, slot: int, other: int) -> Instruction:
    """The value of one slot as another, where ``call`` made it."""
    return Instruction(_aten.detach.default, (Ref(slot),), {}, (other,), where=call.where, origin=call.origin)


def _reading(program: Program, calls: list[list[Instruction]], merged: dict[int, int], again: Collection[int]) -> Program:
    """The Program of these calls, where ``merged`` are read as others, without those calls ``again`` that nobody needs now."""
    live = {out.slot for out in program.outputs if isinstance(out, Ref)}
    kept: list[Instruction] = []
    for index in reversed(range(len(calls))):
        for call in calls[index]:
            if (index in again or (bases_of(call) and call.op not in MAY_RAISE)) and live.isdisjoint(call.outs):
                continue
            if not merged.keys().isdisjoint(call.reads):
                call = dataclasses.replace(call, args=renamed(call.args, merged), kwargs=renamed(call.kwargs, merged))
            live.update(call.reads)
            kept.append(call)
    return dataclasses.replace(program, instructions=tuple(reversed(kept)))
