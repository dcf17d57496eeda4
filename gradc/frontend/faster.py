"""A compiled module or step that turns out slower than eager runs eagerly, counted with the figures.

    faster_of:  (compiled, eager, captured, name, budget, options) -> what to call
    verdict_of: what is compiled -> Verdict | None

Results are the same bit for bit, so one call may be compiled and the next not; gradc.policy.profitability says which. The unit
is what ``gradc.compile`` was given, with Dynamo's guards and the Python between its graphs: these are most of what such a
program loses, and no part of a region. Calls that record gradients are tried apart from those that do not: an agent acts by the
one and learns by the other.
"""

from __future__ import annotations

import types
import weakref
from collections.abc import Callable
from typing import Any

import torch

from gradc import native
from gradc.ambient import is_watched
from gradc.compiled_autograd import settings
from gradc.config import config
from gradc.journal import count, counters, listeners_at_each_pass
from gradc.optim import EagerUpdates, update_natively
from gradc.options import AUTO_BACKEND, DEFAULT_BACKEND, CompileOptions
from gradc.policy.ab_timer import Arm, Verdict
from gradc.policy.budget import Budget
from gradc.policy.profitability import SLOWER, Decision
from gradc.torch_private.autograd import are_saved_tensors_hooked
from gradc.torch_private.modes import is_forward_ad_active

_MEASURED = "calls run eagerly to compare"
_CALLS_NOTED = 6  # a block of a trial; and then those whose number is a power of two: a step may come with every tenth call


class Faster:
    """What is called in place of a compiled function: it, or eager, once that proved to be faster.

    ``captured`` runs it eagerly, but for the backward passes in it, which are captured; None where there are none in it, and
    what is captured is only what somebody asked for.
    """

    def __init__(
        self,
        compiled: Callable[..., Any],
        eager: Callable[..., Any],
        name: str,
        budget: Budget,
        captured: Callable[..., Any] | None = None,
    ) -> None:
        self._compiled, self._eager, self._captured, self._is_running = compiled, eager, captured or eager, False
        self._updates, self._num_asked = EagerUpdates(), 0
        self._module = eager if isinstance(eager, torch.nn.Module) else None  # until it is called, and records gradients
        self._recording = Decision(name, budget, settings.are_captures_asked_for if captured is None else lambda: True)
        self._plain = Decision(f"{name} without gradients", budget)

    @property
    def decisions(self) -> tuple[Decision, Decision]:
        """That of the calls that record gradients, and that of the others."""
        return self._recording, self._plain

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        decision = self._recording if torch.is_grad_enabled() else self._plain
        if decision.chosen is Arm.COMPILED:
            return self._run_compiled_or_try(decision, args, kwargs)
        if decision.is_outdated:
            decision.forget()
        if decision.num_rest == 0:
            return self._tried(decision, args, kwargs)
        decision.num_rest -= 1
        if are_saved_tensors_hooked():  # checkpoint counts them, and may have run this compiled: what was, must be again
            return self._run_compiled(args, kwargs)
        decision.tell()
        decision.hand_over()
        return self._run_eagerly(decision.chosen, args, kwargs)

    def _run_compiled_or_try(self, decision: Decision, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self._module is not None and decision is self._recording:
            update_natively(self._module)
            self._module = None
        if decision.num_rest == 0:
            return self._tried(decision, args, kwargs)
        decision.num_rest -= 1
        return self._run_compiled(args, kwargs)

    def _run_compiled(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        settings.resume()
        self._updates.remove()
        return self._compiled(*args, **kwargs)

    def _run_eagerly(self, arm: Arm, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """With native updates, of the optimizers that a few of the calls have been seen to step."""
        is_captured = arm is Arm.CAPTURED
        settings.resume() if is_captured else settings.suspend()
        self._updates.install()
        run = self._captured if is_captured else self._eager
        self._num_asked += 1
        if self._num_asked > _CALLS_NOTED and self._num_asked & (self._num_asked - 1):
            return run(*args, **kwargs)
        with self._updates.noting():
            return run(*args, **kwargs)

    def _tried(self, decision: Decision, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self._is_running or not (decision.is_in_its_thread() and _is_ordinary()):
            decision.spoil()
            return self._run_compiled(args, kwargs)
        arm, self._is_running = decision.next(), True
        try:
            return self._run_compiled(args, kwargs) if arm is Arm.COMPILED else self._run_to_compare(arm, args, kwargs)
        except BaseException:
            decision.spoil()
            raise
        finally:
            self._is_running = False

    def _run_to_compare(self, arm: Arm, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        count("stats", _MEASURED)
        return self._run_eagerly(arm, args, kwargs)


def _is_ordinary() -> bool:
    """True for a call that nothing but the program itself looks at, and whose backward may be captured or not."""
    return not (is_watched() or is_forward_ad_active()) and settings.may_be_suspended()


_entries: weakref.WeakKeyDictionary[Callable[..., Any], Faster] = weakref.WeakKeyDictionary()


def faster_of(
    compiled: Callable[..., Any],
    eager: Callable[..., Any],
    captured: Callable[..., Any] | None,
    name: str,
    budget: Budget,
    options: CompileOptions,
) -> Callable[..., Any]:
    """What is faster of ``compiled`` and ``eager``; ``compiled`` itself where it was asked for, or might not be eager's.

    Of the backends only gradc's own is known to have eager's bits; where "auto" may have others, they were not asked for.
    """
    asked = dict(options.options)
    is_compared = asked.get("compare_with_eager", config.compare_with_eager)
    if not is_compared or options.fullgraph or options.backend not in (DEFAULT_BACKEND, AUTO_BACKEND):
        return compiled
    return _entry_of(Faster(compiled, eager, name, budget, captured))


def _entry_of(faster: Faster) -> Callable[..., Any]:
    """What asks it where something is to be decided or told, and else calls eager at once."""
    if not native.is_built():
        return faster
    quotas = [decision.quota for decision in faster.decisions]
    counted = counters, "uncompiled", SLOWER
    ways = faster._eager, faster._captured, faster.__call__
    captures = settings.suspend, settings.resume, settings.changes
    parts = *ways, *quotas, *captures, listeners_at_each_pass(), *counted
    entry: Callable[..., Any] = native.extension.eager_entry(parts)
    _entries[entry] = faster
    return entry


def verdict_of(compiled: Any) -> Verdict | None:
    """What the trial of something compiled came to, of its calls that record gradients before the others; None before."""
    called = getattr(compiled, "_gradc_call", compiled)
    faster = called if isinstance(called, Faster) else _faster_behind(called)
    found = [decision.verdict for decision in faster.decisions] if faster is not None else []
    return next((verdict for verdict in found if verdict is not None), None)


def _faster_behind(called: Any) -> Faster | None:
    return _entries.get(called) if isinstance(called, types.BuiltinFunctionType) else None
