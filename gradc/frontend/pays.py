"""Whether compiling pays: a compiled module or step that turns out slower than eager runs eagerly, counted with both figures.

    faster_of: (compiled, eager, name, budget, options) -> what to call      verdict_of: what is compiled -> Verdict | None

Results are the same bit for bit, so one call may be compiled and the next not. It is tried on the calls that the program
makes anyway, once nothing new is compiled any more, or half a second has gone into calls: see gradc.policy.trial. The unit
is what ``gradc.compile`` was given, with Dynamo's guards and the Python between its graphs: these are most of what such a
program loses, and no part of a region.
Calls that record gradients are tried apart from those that do not: an agent acts by the one and learns by the other. Only one
is tried at a time, or a slow one would count against another; but where there are many, none of which makes much of a step, all
are tried as one. See Note [What pays].
"""

from __future__ import annotations

import threading
import time
import types
import weakref
from collections.abc import Callable
from typing import Any

import torch

from gradc import native
from gradc.backends.auto import num_offers
from gradc.compiled_autograd import settings
from gradc.config import config
from gradc.journal import count, counter_of, counters, listeners_at_each_pass, log, num_compiled
from gradc.options import AUTO_BACKEND, DEFAULT_BACKEND, CompileOptions
from gradc.policy.budget import Budget, seconds_paid
from gradc.policy.trial import Arm, Trial, Verdict
from gradc.torch_private.autograd import are_saved_tensors_hooked
from gradc.torch_private.dynamo import Uncompiled
from gradc.torch_private.modes import is_any_mode_active, is_forward_ad_active, is_functorch_active

CLOCK = time.monotonic
_QUIET_CALLS = 10  # without a compilation, before the trial begins
_MOST_CALLS = 200  # before it begins, whether something is still compiled or not: it may go on for ever
_FEW_CALLS = 3
_MANY = 4  # that are called: more are tried as one
_MOST_SECONDS = 0.5  # before it begins, if there were a few calls: they may be slower than eager's by a factor
_CALLS_UNTIL_NEXT = 20_000  # from one trial to the next: sizes may have changed
_SECONDS_UNTIL_NEXT = 60.0  # or until then, if something was left to compile; the next time twice as long
_CALLS_UNASKED = 100  # that the native entry runs eagerly, between two of which it is asked whether it still should
_IDLE = 60.0  # seconds after which another may be tried instead
_ADVICE = (
    "Nothing is lost: results are the same. gradc.explain names what breaks the program into pieces; to compile it all the\n"
    '  same: options={"compare_with_eager": False}, or GRADC_COMPARE_WITH_EAGER=0.'
)
_SLOWER = "slower than eager"
_MEASURED = "calls run eagerly to compare"


class Contest:
    """The trial of one kind of calls, what it waits for, and what came of it. Begins anew ``_CALLS_UNTIL_NEXT`` calls later.

    Attributes:
        quota: of those, how many the native entry may run eagerly without asking here.
        tell: counts a call that runs eagerly since that is faster.
    """

    def __init__(self, name: str, budget: Budget) -> None:
        self._name, self._budget, self.quota = name, budget, [0]
        self.forget()

    @property
    def num_rest(self) -> int:
        """How many calls are left until it begins anew; 0 before there is a verdict. Who sets it takes the quota back."""
        return self._num_rest + self.quota[0]

    @num_rest.setter
    def num_rest(self, number: int) -> None:
        self._num_rest, self.quota[0] = number, 0

    def hand_over(self) -> None:
        """A part of the calls that are left is the native entry's."""
        number = self.num_rest
        self.quota[0] = min(number, _CALLS_UNASKED)
        self._num_rest = number - self.quota[0]

    def forget(self) -> None:
        """As if nothing had been called yet."""
        self.verdict: Verdict | None = None
        self.is_eager, self.num_rest, self._num_offers, self._num_early = False, 0, 0, 0
        _turn.give_up(self)
        self._wait()

    def _wait(self) -> None:
        self._trial: Trial | None = None
        self._followers: weakref.WeakSet[Contest] | None = None
        self._arm = Arm.COMPILED
        self._num_calls, self._num_quiet, self._num_compiled = 0, 0, -1
        self._thread: int | None = None
        self._clock, self.last_call = trial_clock(), CLOCK()
        self._since = 0.0  # when the first call began

    @property
    def is_undecided(self) -> bool:
        """True if a trial is to come: calls were made that it may begin with, and not all of them long ago."""
        return self.verdict is None and self._num_calls > 0 and CLOCK() - self.last_call <= _IDLE

    def is_in_its_thread(self) -> bool:
        return self._thread in (None, threading.get_ident())

    def spoil(self) -> None:
        """Something else came in between two calls."""
        if self._trial is not None:
            self._trial.spoil()

    def next(self) -> Arm:
        """Which arm the call that now begins goes to."""
        self._thread, self.last_call = threading.get_ident(), CLOCK()
        if self._trial is not None and not _turn.is_of(self):  # not called for long: another was tried meanwhile
            self._wait()
        self._look()
        leader = _turn.holder()
        if leader is None or leader is self or not leader.leads(self):
            self._arm = self._next()
            return self._arm
        return leader._arm

    def leads(self, other: Contest) -> bool:
        """True if ``other`` goes the same way, and is decided with this."""
        if self._followers is None or self._thread != other._thread or CLOCK() - self.last_call > _IDLE:
            return False
        self._followers.add(other)
        return True

    def _next(self) -> Arm:
        if self._trial is None:
            if not (self._is_settled or self._is_slow) or not _turn.take(self):
                return Arm.COMPILED
            self._trial = Trial(self._clock, Arm.COMPILED if self._is_settled else Arm.EAGER)
            self._followers = weakref.WeakSet() if num_undecided() > _MANY else None
        elif self._num_quiet == 0 and not self._is_slow and self._num_calls < _MOST_CALLS:
            self._trial.spoil()
        arm = self._trial.next()
        if (verdict := self._trial.verdict) is not None:
            self._trial = self._trial.in_rounds()
            for contest in (self, *(self._followers or ())) if self._trial is None else ():
                contest._obey(verdict)
        return arm

    def _look(self) -> None:
        """Is something still compiled, or does it wait for its budget?"""
        number = num_compiled() + self._budget.num_functions + self._budget.num_refused
        self._num_quiet = self._num_quiet + 1 if number == self._num_compiled else 0
        self._num_compiled, self._num_calls = number, self._num_calls + 1
        if self._num_calls == 1:
            self._since = self._clock()

    @property
    def _is_settled(self) -> bool:
        return self._num_quiet >= _QUIET_CALLS or self._num_calls >= _MOST_CALLS

    @property
    def _is_slow(self) -> bool:
        return self._num_calls > _FEW_CALLS and self._clock() - self._since > _MOST_SECONDS

    def _obey(self, verdict: Verdict) -> None:
        self.verdict, self.is_eager, self.num_rest = verdict, verdict.chosen is Arm.EAGER, self._num_until_next(verdict)
        self.tell = counter_of(Uncompiled(False, _SLOWER, f"{self._name}: {verdict}", "", _ADVICE))
        log("perf", f"{self._name} runs {'eagerly' if self.is_eager else 'compiled'}: {verdict}")
        self._num_offers = num_offers()
        _turn.give_up(self)
        self._wait()

    def _num_until_next(self, verdict: Verdict) -> int:
        """How many calls the verdict holds for: fewer where something was still compiled, or waited for its budget."""
        if self._is_settled:
            return _CALLS_UNTIL_NEXT
        self._num_early += 1
        seconds = _SECONDS_UNTIL_NEXT * 2 ** (self._num_early - 1)
        return min(_CALLS_UNTIL_NEXT, max(_QUIET_CALLS, int(seconds / max(verdict.eager, 1e-6))))

    @property
    def is_outdated(self) -> bool:
        """True if a Program has got other code since the verdict: what was slower than eager may not be any more."""
        return self.is_eager and self._num_offers != num_offers()


class Faster:
    """What is called in place of a compiled function: it, or eager, once that proved to be faster."""

    def __init__(self, compiled: Callable[..., Any], eager: Callable[..., Any], name: str, budget: Budget) -> None:
        self._compiled, self._eager, self._is_running = compiled, eager, False
        self._recording, self._plain = Contest(name, budget), Contest(f"{name} without gradients", budget)
        _known.add(self)

    @property
    def contests(self) -> tuple[Contest, Contest]:
        """That of the calls that record gradients, and that of the others."""
        return self._recording, self._plain

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        contest = self._recording if torch.is_grad_enabled() else self._plain
        if not contest.is_eager:
            return self._run_compiled_or_try(contest, args, kwargs)
        if contest.is_outdated:
            contest.forget()
        if contest.num_rest == 0:
            return self._tried(contest, args, kwargs)
        contest.num_rest -= 1
        if are_saved_tensors_hooked():  # checkpoint counts them, and may have run this compiled: what was, must be again
            return self._run_compiled(args, kwargs)
        contest.tell()
        contest.hand_over()
        settings.suspend()
        return self._eager(*args, **kwargs)

    def _run_compiled_or_try(self, contest: Contest, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if contest.num_rest == 0:
            return self._tried(contest, args, kwargs)
        contest.num_rest -= 1
        return self._run_compiled(args, kwargs)

    def _run_compiled(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        settings.resume()
        return self._compiled(*args, **kwargs)

    def _tried(self, contest: Contest, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self._is_running or not (contest.is_in_its_thread() and _is_ordinary()):
            contest.spoil()
            return self._run_compiled(args, kwargs)
        arm, self._is_running = contest.next(), True
        try:
            return self._run_compiled(args, kwargs) if arm is Arm.COMPILED else self._run_to_compare(args, kwargs)
        except BaseException:
            contest.spoil()
            raise
        finally:
            self._is_running = False

    def _run_to_compare(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        count("stats", _MEASURED)
        settings.suspend()
        return self._eager(*args, **kwargs)


def _is_ordinary() -> bool:
    """True for a call that nothing but the program itself looks at, and whose backward may be captured or not."""
    is_looked_at = is_any_mode_active() or _is_transformed() or are_saved_tensors_hooked()
    return not is_looked_at and settings.may_be_suspended()


def trial_clock() -> Callable[[], float]:
    """Beside an accelerator, what passes; else what this thread computes, so that other processes do not disturb the trial.

    Without what compiling takes, which budgets bound.
    """
    clock = time.perf_counter if torch.accelerator.is_available() else time.thread_time
    return lambda: clock() - seconds_paid()


def _is_transformed() -> bool:
    return is_functorch_active() or is_forward_ad_active()


class _Turn:
    """Whose trial it is."""

    def __init__(self) -> None:
        self._holder: weakref.ref[Contest] | None = None

    def holder(self) -> Contest | None:
        return self._holder() if self._holder is not None else None

    def take(self, asker: Contest) -> bool:
        """True if ``asker`` may try: it is nobody's turn, or that of one that is not called any more."""
        holder = self.holder()
        if holder is None or asker.last_call - holder.last_call > _IDLE:
            self._holder = weakref.ref(asker)
        return self.is_of(asker)

    def is_of(self, asker: Contest) -> bool:
        return self.holder() is asker

    def give_up(self, asker: Contest) -> None:
        if self.is_of(asker):
            self._holder = None


_turn = _Turn()
_known: weakref.WeakSet[Faster] = weakref.WeakSet()
_entries: weakref.WeakKeyDictionary[Callable[..., Any], Faster] = weakref.WeakKeyDictionary()


def faster_of(
    compiled: Callable[..., Any], eager: Callable[..., Any], name: str, budget: Budget, options: CompileOptions
) -> Callable[..., Any]:
    """``compiled``, or eager where that is faster. ``compiled`` itself where it was asked for, or might not be eager's.

    Of the backends only gradc's own is known to have eager's bits; where "auto" may have others, they were not asked for.
    """
    asked = dict(options.options)
    is_compared = asked.get("compare_with_eager", config.compare_with_eager)
    if not is_compared or options.fullgraph or options.backend not in (DEFAULT_BACKEND, AUTO_BACKEND):
        return compiled
    return _entry_of(Faster(compiled, eager, name, budget))


def _entry_of(faster: Faster) -> Callable[..., Any]:
    """What asks it where something is to be decided or told, and else calls eager at once."""
    if not native.is_built():
        return faster
    quotas = [contest.quota for contest in faster.contests]
    counted = counters, "uncompiled", _SLOWER
    parts = faster._eager, faster.__call__, *quotas, settings.suspend, settings.changes, listeners_at_each_pass(), *counted
    entry: Callable[..., Any] = native.extension.eager_entry(parts)
    _entries[entry] = faster
    return entry


def verdict_of(compiled: Any) -> Verdict | None:
    """What the trial of something compiled came to, of its calls that record gradients before the others; None before."""
    called = getattr(compiled, "_gradc_call", compiled)
    faster = called if isinstance(called, Faster) else _faster_behind(called)
    found = [contest.verdict for contest in faster.contests] if faster is not None else []
    return next((verdict for verdict in found if verdict is not None), None)


def _faster_behind(called: Any) -> Faster | None:
    return _entries.get(called) if isinstance(called, types.BuiltinFunctionType) else None


def verdicts() -> list[Verdict]:
    """Of all trials so far."""
    return [contest.verdict for contest in _contests() if contest.verdict is not None]


def is_undecided() -> bool:
    """True while a trial of something that is called has not ended, or not begun."""
    return num_undecided() > 0


def num_undecided() -> int:
    return sum(contest.is_undecided for contest in _contests())


def forget_verdicts() -> None:
    for contest in _contests():
        contest.forget()


def _contests() -> list[Contest]:
    return [contest for each in list(_known) for contest in each.contests]
