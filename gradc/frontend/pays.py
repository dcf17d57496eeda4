"""Whether compiling pays: a compiled module or step that turns out slower than eager runs eagerly, counted with both figures.

    faster_of: (compiled, eager, name, budget, options) -> what to call      verdict_of: what is compiled -> Verdict | None

Results are the same bit for bit, so one call may be compiled and the next not. It is tried on the calls that the program
makes anyway, once nothing new is compiled any more: see gradc.frontend.trial. The unit is what ``gradc.compile`` was given,
with Dynamo's guards and the Python between its graphs: these are most of what such a program loses, and no part of a region.
Only one is tried at a time, or a slow one would count against another. See Note [What pays].
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

import torch

from gradc.compiled_autograd import settings
from gradc.config import config
from gradc.frontend.budget import Budget
from gradc.frontend.trial import Arm, Trial, Verdict
from gradc.journal import count, counter_of, log, num_compiled
from gradc.options import DEFAULT_BACKEND, CompileOptions
from gradc.torch_private.autograd import are_saved_tensors_hooked
from gradc.torch_private.dynamo import Uncompiled
from gradc.torch_private.modes import is_any_mode_active, is_forward_ad_active, is_functorch_active

CLOCK = time.perf_counter
_QUIET_CALLS = 30  # without a compilation, before the trial begins
_MOST_CALLS = 200  # before it begins, whether something is still compiled or not: it may go on for ever
_CALLS_UNTIL_NEXT = 20_000  # from one trial to the next: sizes may have changed
_IDLE = 60.0  # seconds after which another may be tried instead
_ADVICE = (
    "Nothing is lost: results are the same. gradc.explain names what breaks the program into pieces; to compile it all the\n"
    '  same: options={"compare_with_eager": False}, or GRADC_COMPARE_WITH_EAGER=0.'
)
_MEASURED = "calls run eagerly to compare"


class Faster:
    """What is called in place of a compiled function: it, or eager, once that proved to be faster."""

    def __init__(self, compiled: Callable[..., Any], eager: Callable[..., Any], name: str, budget: Budget) -> None:
        self._compiled, self._eager, self._name, self._budget = compiled, eager, name, budget
        self.forget()
        _known.add(self)

    def forget(self) -> None:
        """As if nothing had been called yet."""
        self.verdict: Verdict | None = None
        self._is_eager, self._num_rest, self._is_running = False, 0, False
        self._wait()

    def _wait(self) -> None:
        self._trial: Trial | None = None
        self._num_calls, self._num_quiet, self._num_compiled = 0, 0, -1
        self._thread: int | None = None
        self.last_call = CLOCK()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self._num_rest == 0:
            return self._tried(args, kwargs)
        self._num_rest -= 1
        return self._run_eagerly(args, kwargs) if self._is_eager else self._compiled(*args, **kwargs)

    def _run_eagerly(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if are_saved_tensors_hooked():  # checkpoint counts them, and may have run this compiled: what was, must be again
            return self._compiled(*args, **kwargs)
        self._tell()
        return self._eager(*args, **kwargs)

    def _tried(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self._is_running or not self._is_ordinary():
            if self._trial is not None:
                self._trial.spoil()
            return self._compiled(*args, **kwargs)
        arm, self._is_running = self._next(), True
        try:
            if arm is Arm.EAGER:
                count("stats", _MEASURED)
            return (self._eager if arm is Arm.EAGER else self._compiled)(*args, **kwargs)
        except BaseException:
            if self._trial is not None:
                self._trial.spoil()
            raise
        finally:
            self._is_running = False

    def _is_ordinary(self) -> bool:
        """True for a call of a training step, in the thread of the first, that nothing but the program itself looks at."""
        is_plain = torch.is_grad_enabled() and self._thread in (None, threading.get_ident()) and not settings.present().is_on
        return is_plain and not (is_any_mode_active() or _is_transformed() or are_saved_tensors_hooked())

    def _next(self) -> Arm:
        self._thread, self.last_call = threading.get_ident(), CLOCK()
        if self._trial is not None and not _turn.is_of(self):  # not called for long: another was tried meanwhile
            self._wait()
        if self._trial is None:
            if not self._is_settled() or not _turn.take(self):
                return Arm.COMPILED
            self._trial = Trial(CLOCK)
        arm = self._trial.next()
        if self._trial.verdict is not None:
            self._obey(self._trial.verdict)
        return arm

    def _is_settled(self) -> bool:
        """True once nothing is compiled any more, nor waits for its budget; or after so many calls that it may never be."""
        number = num_compiled() + self._budget.num_functions + self._budget.num_refused
        self._num_quiet = self._num_quiet + 1 if number == self._num_compiled else 0
        self._num_compiled, self._num_calls = number, self._num_calls + 1
        return self._num_quiet >= _QUIET_CALLS or self._num_calls >= _MOST_CALLS

    def _obey(self, verdict: Verdict) -> None:
        self.verdict, self._is_eager, self._num_rest = verdict, verdict.chosen is Arm.EAGER, _CALLS_UNTIL_NEXT
        self._tell = counter_of(Uncompiled(False, "slower than eager", f"{self._name}: {verdict}", "", _ADVICE))
        log("perf", f"{self._name} runs {'eagerly' if self._is_eager else 'compiled'}: {verdict}")
        _turn.give_up(self)
        self._wait()


def _is_transformed() -> bool:
    return is_functorch_active() or is_forward_ad_active()


class _Turn:
    """Whose trial it is."""

    def __init__(self) -> None:
        self._holder: weakref.ref[Faster] | None = None

    def take(self, asker: Faster) -> bool:
        """True if ``asker`` may try: it is nobody's turn, or that of one that is not called any more."""
        holder = self._holder() if self._holder is not None else None
        if holder is None or asker.last_call - holder.last_call > _IDLE:
            self._holder = weakref.ref(asker)
        return self.is_of(asker)

    def is_of(self, asker: Faster) -> bool:
        return self._holder is not None and self._holder() is asker

    def give_up(self, asker: Faster) -> None:
        if self.is_of(asker):
            self._holder = None


_turn = _Turn()
_known: weakref.WeakSet[Faster] = weakref.WeakSet()


def faster_of(
    compiled: Callable[..., Any], eager: Callable[..., Any], name: str, budget: Budget, options: CompileOptions
) -> Callable[..., Any]:
    """``compiled``, or eager where that is faster. ``compiled`` itself where it was asked for, or might not be eager's.

    Of the backends only gradc's own is known to have eager's bits.
    """
    asked = dict(options.options)
    is_compared = asked.get("compare_with_eager", config.compare_with_eager)
    if not is_compared or options.fullgraph or options.backend != DEFAULT_BACKEND:
        return compiled
    return Faster(compiled, eager, name, budget)


def verdict_of(compiled: Any) -> Verdict | None:
    """What the trial of something compiled came to; None before."""
    called = getattr(compiled, "_gradc_call", compiled)
    return called.verdict if isinstance(called, Faster) else None


def forget_verdicts() -> None:
    for each in list(_known):
        each.forget()
