"""Does a trace with symbolic sizes, at given sizes, make the calls of another? Call by call, on the same values.

    Trace.of: Captured -> Trace                              without calls that only make another handle of a value
    is_same: (Trace, names of symbols, values, Trace) -> bool
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import sympy
import torch

from gradc.bits import same_bits
from gradc.capture.recording import Boundary, Captured, EngineState, Expected, Ran, Slots, Span, Waiting
from gradc.ir.text import symbolic
from gradc.ir.values import Instruction, Ref, Slot, Sym, leaves, map_leaves
from gradc.symbolic.terms import Values


@dataclasses.dataclass(frozen=True)
class Trace:
    """What a capture or trace recorded, without its tensors, and without calls that make another handle of a value."""

    inputs: Slots
    slots: tuple[Slot, ...]
    constants: dict[int, torch.Tensor]
    instructions: tuple[Instruction, ...]
    events: tuple[Ran | Boundary, ...]
    results: Slots

    @classmethod
    def of(cls, captured: Captured) -> Trace:
        source = {-1: -1, **captured.twins}
        kept: list[Instruction] = []
        before = [0]  # how many calls are kept before each
        for call in captured.instructions:
            if call.op is torch.ops.aten.detach.default and call.outs[0] is not None:
                base = call.args[0].slot
                source[call.outs[0]] = source.get(base, base)
            else:
                kept.append(dataclasses.replace(call, args=_renamed(call.args, source), kwargs=_renamed(call.kwargs, source)))
            before.append(len(kept))
        events = tuple(_moved(event, before, source) for event in captured.events)
        inputs, results = _sources(captured.inputs, source), _sources(captured.results, source)
        return cls(inputs, captured.slots, captured.constants, tuple(kept), events, results)

    def used(self) -> set[int]:
        """The slots that something reads."""
        read = {leaf.slot for call in self.instructions for leaf in leaves((call.args, call.kwargs)) if isinstance(leaf, Ref)}
        for event in self.events:
            read |= {*event.inputs, event.grad} if isinstance(event, Ran) else {*event.inputs, *event.after.slots()}
        return read.union(self.results)


def _renamed(tree: Any, source: dict[int, int]) -> Any:
    return map_leaves(lambda leaf: Ref(source.get(leaf.slot, leaf.slot)) if isinstance(leaf, Ref) else leaf, tree)


def _sources(slots: Slots, source: dict[int, int]) -> Slots:
    return tuple(source.get(slot, slot) for slot in slots)


def _moved(event: Ran | Boundary, before: list[int], source: dict[int, int]) -> Ran | Boundary:
    inputs = _sources(event.inputs, source)
    if isinstance(event, Ran):
        calls = Span(before[event.calls.start], before[event.calls.stop])
        return dataclasses.replace(event, calls=calls, inputs=inputs, grad=source.get(event.grad, event.grad))
    outputs, after = _sources(event.outputs, source), _moved_state(event.after, source)
    return dataclasses.replace(event, position=before[event.position], inputs=inputs, outputs=outputs, after=after)


def _moved_state(state: EngineState, source: dict[int, int]) -> EngineState:
    not_ready, ready = (
        tuple(Waiting(waiting.node, _sources(waiting.inputs, source)) for waiting in nodes)
        for nodes in (state.not_ready, state.ready)
    )
    results, views = _sources(state.results, source), _sources(state.views, source)
    return EngineState(state.newly_done, not_ready, ready, results, views)


def is_same(own: Trace, names: Sequence[sympy.Symbol], values: Values, other: Trace) -> bool:
    """Does ``own``, where its symbols have these values, make the calls of ``other``, in the same order, on the same values?"""
    return _Comparison(own, names, values).is_same(other)


class _Comparison:
    """Matches a symbolic trace, at given sizes, with another, slot by slot."""

    def __init__(self, own: Trace, names: Sequence[sympy.Symbol], values: Values) -> None:
        self.own, self.used = own, own.used()
        self.values = dict(zip(map(str, names), values, strict=True))
        self.terms = values
        self.match: dict[int, int] = {-1: -1}
        self.taken: set[int] = {-1}

    def is_same(self, other: Trace) -> bool:
        own = self.own
        return (
            self._slots(own.inputs, other.inputs)
            and len(own.instructions) == len(other.instructions)
            and all(self._calls(a, b, other) for a, b in zip(own.instructions, other.instructions))
            and len(own.events) == len(other.events)
            and all(map(self._events, own.events, other.events))
            and self._slots(own.results, other.results)
        )

    def _slots(self, own: Sequence[int], other: Sequence[int]) -> bool:
        return len(own) == len(other) and all(map(self._slot, own, other))

    def _slot(self, own: int, other: int) -> bool:
        if own not in self.match and other not in self.taken:
            self.match[own] = other
            self.taken.add(other)
        return self.match.get(own) == other

    def _calls(self, own: Instruction, other: Instruction, others: Trace) -> bool:
        if own.op is not other.op or own.autocast != other.autocast or len(own.outs) != len(other.outs):
            return False
        mine, its = list(leaves((own.args, own.kwargs))), list(leaves((other.args, other.kwargs)))
        if len(mine) != len(its) or not all(self._arguments(a, b, others) for a, b in zip(mine, its)):
            return False
        return all(self._outputs(a, b, others) for a, b in zip(own.outs, other.outs))

    def _outputs(self, own: int | None, other: int | None, others: Trace) -> bool:
        if own is None or other is None:  # a kernel may leave out what its fake returns, and nobody asked for
            return other is None and (own is None or own not in self.used)
        return self._slot(own, other) and self._shapes(own, other, others)

    def _arguments(self, own: Any, other: Any, others: Trace) -> bool:
        if isinstance(own, Ref) and isinstance(other, Ref):
            mine, its = self.own.constants.get(own.slot), others.constants.get(other.slot)
            if mine is None or its is None:
                return mine is its and self._slot(own.slot, other.slot)
            return same_bits(mine, its) and self._slot(own.slot, other.slot)
        return same_bits(self._number(own), other)

    def _number(self, leaf: Any) -> Any:
        if not isinstance(leaf, Sym):
            return leaf
        return leaf.kind(eval(symbolic(leaf.expr), {"torch": torch, "math": math}, dict(self.values)))

    def _shapes(self, own: int, other: int, others: Trace) -> bool:
        mine, its = self.own.slots[own].meta, others.slots[other].meta
        if mine is None or its is None:
            return mine is its
        shape = tuple(map(self._number, mine.shape))
        strides = zip(shape, map(self._number, mine.stride), its.stride)
        has_strides = 0 in shape or all(size == 1 or a == b for size, a, b in strides)
        return bool(mine.dtype == its.dtype and shape == its.shape and has_strides)

    def _events(self, own: Ran | Boundary, other: Ran | Boundary) -> bool:
        if own.node != other.node:
            return False
        if isinstance(own, Ran) and isinstance(other, Ran):
            same = own.is_leaf == other.is_leaf and own.calls == other.calls and (own.grad < 0) == (other.grad < 0)
            return same and self._slot(own.grad, other.grad) and self._slots(own.inputs, other.inputs)
        if not isinstance(own, Boundary) or not isinstance(other, Boundary):
            return False
        return (
            own.position == other.position
            and own.dependent == other.dependent
            and own.dependent_inputs == other.dependent_inputs
            and self._slots(own.inputs, other.inputs)
            and self._slots(own.outputs, other.outputs)
            and self._states(own.after, other.after)
            and all(map(self._expected, own.expected, other.expected))
        )

    def _states(self, own: EngineState, other: EngineState) -> bool:
        return (
            own.newly_done == other.newly_done
            and self._slots(own.results, other.results)
            and self._waiting(own.not_ready, other.not_ready)
            and self._waiting(own.ready, other.ready)
        )

    def _waiting(self, own: Sequence[Waiting], other: Sequence[Waiting]) -> bool:
        pairs = zip(own, other)
        return len(own) == len(other) and all(a.node == b.node and self._slots(a.inputs, b.inputs) for a, b in pairs)

    def _expected(self, own: Expected, other: Expected) -> bool:
        return own.head == other.head and [term.at(self.terms) for term in own.numbers] == list(map(int, other.numbers))
