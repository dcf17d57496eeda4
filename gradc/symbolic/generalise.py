"""Make one recording of a backward serve other sizes: trace it with symbolic sizes, and prove the trace.

    generalise: Walk, Fit, boundaries met -> General    a trace with symbols, to be compared with the capture that follows
    trace:      Walk, numbers, ... -> Captured          the formulas of the live nodes, run on fake tensors
    General.agrees(Trace, values)                       does the trace make these calls at these sizes?
    General.is_proven(Walk, values)                     does it hold for sizes not met before?

Nothing is guessed: a trace is used only if it equals a live capture call by call, and at other sizes only if all conditions
that tracing relied on hold there, or if tracing again at exactly these sizes makes the same calls.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import sympy
import torch

from gradc import native
from gradc.capture.capture import Observer, Values
from gradc.capture.recording import Boundary, Captured, Expected
from gradc.errors import UnsupportedError
from gradc.ir.text import symbolic
from gradc.symbolic.same_calls import Trace, is_same
from gradc.symbolic.stand_ins import returned, stand_ins
from gradc.symbolic.terms import Fit, Numbers, term_of
from gradc.torch_private.backward_passes import take_for_own
from gradc.torch_private.fakes import FakeTensorMode, heed_guards, new_shape_env, new_symint

if TYPE_CHECKING:
    from gradc._C import Walk


@dataclasses.dataclass(frozen=True)
class General:
    """A symbolic trace. ``names`` are the symbols in the order of their values; ``holds`` the conditions it relied on."""

    fit: Fit
    names: tuple[sympy.Symbol, ...]
    captured: Captured
    trace: Trace
    met: tuple[Boundary, ...]  # of the live capture that tracing relied on
    holds: Callable[[Sequence[int]], bool]

    def agrees(self, other: Trace, values: Sequence[int]) -> bool:
        """Does the trace, at these sizes, make the calls of ``other``, in the same order, on the same values?"""
        return is_same(self.trace, self.names, values, other)

    def is_proven(self, walk: Walk, values: Sequence[int]) -> bool:
        """Is the trace right for the walked graph, whose sizes these are?"""
        if all(value > 1 for value in values) and self.holds(values):
            return True
        try:
            return self.agrees(Trace.of(trace(walk, self.fit.numbers_at(values), self.met)), values)
        except UnsupportedError:
            return False


def generalise(walk: Walk, fitted: Fit, met: tuple[Boundary, ...]) -> General:
    """Trace the walked graph with symbols in place of what changes. ``met``: the boundaries of the last live capture.

    Raises:
        UnsupportedError: if it cannot be traced, or only for sizes that are not free to change.
    """
    seen = fitted.values_in(walk.numbers)
    if not seen or any(value < 0 for value in seen):
        raise UnsupportedError("change that no size explains")
    heed_guards()
    env = new_shape_env()
    values = [new_symint(env, f"size_{number}", hint) for number, hint in enumerate(_hints(seen))]
    names = tuple(value.node.expr for value in values)
    traced = trace(walk, fitted.numbers_at(values), met, env)
    if any(symbol in env.replacements for symbol in names):
        raise UnsupportedError("formula that fixes a size")
    captured = _in_terms(traced, names, {boundary.node: boundary for boundary in met})
    return General(fitted, names, captured, Trace.of(captured), met, _conditions(env, names))


def _in_terms(traced: Captured, names: tuple[sympy.Symbol, ...], met: Mapping[int, Boundary]) -> Captured:
    """``traced``, whose boundaries expect Terms, and own what they owned in the live capture."""

    def known(boundary: Boundary) -> Boundary:
        expected = tuple(
            dataclasses.replace(one, numbers=tuple(term_of(number, names) for number in one.numbers))
            for one in boundary.expected
        )
        seen = met[boundary.node]
        boundary = dataclasses.replace(boundary, expected=expected, is_stealable=seen.is_stealable, is_kept=seen.is_kept)
        return dataclasses.replace(boundary, is_result_stealable=seen.is_result_stealable)

    events = tuple(known(event) if isinstance(event, Boundary) else event for event in traced.events)
    return dataclasses.replace(traced, events=events)


def trace(walk: Walk, numbers: Numbers, met: Sequence[Boundary], env: Any = None) -> Captured:
    """Run the formulas of the walked nodes on fake tensors of the given sizes. The live graph keeps what it saved.

    Raises:
        UnsupportedError: if a formula does not run on fake tensors.
    """
    try:
        traced = _trace(walk, numbers, met, FakeTensorMode(shape_env=env, allow_non_fake_inputs=True))
    except UnsupportedError:
        raise
    except Exception as error:  # whatever a formula meets that it cannot do without data
        raise UnsupportedError("backward that cannot be traced", f"{type(error).__name__}: {error}") from error
    if traced.failure:
        raise UnsupportedError(traced.failure)
    return traced


def _trace(walk: Walk, numbers: Numbers, met: Sequence[Boundary], mode: Any) -> Captured:
    with mode, torch.no_grad():
        tensors = stand_ins(walk, numbers)
        results = {boundary.node: returned(walk, boundary, numbers) for boundary in met}
    outputs = {boundary.node: (results[boundary.node][0], list(boundary.is_result_stealable)) for boundary in met}
    observer = _TraceObserver(walk, tensors, mode, {node: expected for node, (_, expected) in results.items()})
    try:
        return observer.captured(native.extension.trace(walk, observer, tensors, list(numbers), outputs))
    finally:
        observer.forget_tensors()


class _TraceObserver(Observer):
    """An Observer of fake tensors. ``expected``: what boundaries return, by node."""

    def __init__(
        self, walk: Walk, tensors: list[torch.Tensor], mode: Any, expected: Mapping[int, tuple[Expected, ...]]
    ) -> None:
        super().__init__(walk, tensors)
        self._mode, self._known = mode, expected

    def begin(self) -> None:
        take_for_own()
        super().begin()

    def _around(self) -> tuple[AbstractContextManager[Any], ...]:
        return (self._mode, *super()._around())

    def _expected(self, node: int, outputs: Values) -> tuple[Expected, ...]:
        if node not in self._known:
            raise UnsupportedError("node that runs live only in a trace")
        return self._known[node]

    def _note_region(self, node: int, gradients: Values) -> None:
        """The live capture reports regions."""


def _hints(values: Sequence[int]) -> list[int]:
    """Sizes to trace at: those at hand, but none of 0, 1 or met twice, since formulas treat these in ways of their own."""
    hints: list[int] = []
    for value in values:
        hint = max(value, 2)
        while hint in hints:
            hint += 1
        hints.append(hint)
    return hints


def _conditions(env: Any, names: Sequence[sympy.Symbol]) -> Callable[[Sequence[int]], bool]:
    """What tracing relied on, as a function of the symbols' values."""
    exprs = dict.fromkeys(guard.expr for guard in env.guards)
    unknown = {symbol for expr in exprs for symbol in expr.free_symbols} - set(names)
    if unknown:
        raise UnsupportedError("condition on data")
    source = f"lambda {', '.join(map(str, names))}: " + (" and ".join(f"({symbolic(e)})" for e in exprs) or "True")
    function = eval(source, {"torch": torch, "math": math})
    return lambda values: bool(function(*values))
