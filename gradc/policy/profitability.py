"""Whether compiling pays: the trial of what is called, when it begins, and what holds until the next.

    Decision: next() -> Arm, of each call        num_undecided, verdicts, forget_verdicts: of all there are

The trial is of the calls that the program makes anyway, once nothing new is compiled any more, or half a second has gone into
calls: see gradc.policy.ab_timer. Only one is tried at a time, or a slow one would count against another; but where there are
many, none of which makes much of a step, all are tried as one. See Note [What pays].
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable

import torch

from gradc.journal import counter_of, log, num_compiled, num_offers
from gradc.policy.ab_timer import ABTimer, Arm, Verdict
from gradc.policy.budget import Budget, seconds_paid
from gradc.policy.credit import CREDIT
from gradc.torch_private.dynamo import Uncompiled

CLOCK = time.monotonic
_QUIET_CALLS = 10  # without a compilation, before the trial begins
_MOST_CALLS = 200  # before it begins, whether something is still compiled or not: it may go on for ever
_FEW_CALLS = 3
_MANY = 4  # that are called: more are tried as one
_MOST_SECONDS = 0.5  # before it begins, if there were a few calls: they may be slower than eager's by a factor
_CALLS_UNTIL_NEXT = 20_000  # from one trial to the next: sizes may have changed
_SECONDS_UNTIL_NEXT = 60.0  # or until then, if something was left to compile; the next time twice as long
CALLS_UNASKED = 100  # that the native entry runs eagerly, between two of which it is asked whether it still should
_IDLE = 60.0  # seconds after which another may be tried instead
_ADVICE = (
    "Nothing is lost: results are the same. gradc.explain names what breaks the program into pieces; to compile it all the\n"
    '  same: options={"compare_with_eager": False}, or GRADC_COMPARE_WITH_EAGER=0.'
)
_WARM_UP = 6  # calls of the third arm, which are captured, and replayed for the first time
_CLEARLY_COMPILED = 0.6  # of eager's time: captured backward passes alone do not take so much away
SLOWER = "slower than eager"


class Decision:
    """The trial of one kind of calls, what it waits for, and what came of it. Begins anew ``_CALLS_UNTIL_NEXT`` calls later.

    Where it ``may_capture`` a third arm is tried against the faster of the first two, unless compiled calls are clearly faster.

    Attributes:
        chosen: the arm that calls go to while none is tried.
        quota: of those, how many the native entry may make without asking here; whether their backward passes are captured.
        tell: counts a call that runs eagerly since that is faster.
    """

    def __init__(self, name: str, budget: Budget, may_capture: Callable[[], bool] = lambda: False) -> None:
        self._name, self._budget, self._may_capture, self.quota = name, budget, may_capture, [0, False]
        self.forget()
        _known.add(self)

    @property
    def num_rest(self) -> int:
        """How many calls are left until it begins anew; 0 before there is a verdict. Who sets it takes the quota back."""
        return self._num_rest + self.quota[0]

    @num_rest.setter
    def num_rest(self, number: int) -> None:
        self._num_rest, self.quota[0] = number, 0

    def hand_over(self) -> None:
        """A part of the calls that are left is the native entry's, if it is to run them eagerly and no more."""
        number = self.num_rest
        self.quota[:] = 0 if self.chosen is Arm.COMPILED else min(number, CALLS_UNASKED), self.chosen is Arm.CAPTURED
        self._num_rest = number - self.quota[0]

    def forget(self) -> None:
        """As if nothing had been called yet."""
        self.verdict: Verdict | None = None
        self.chosen, self.num_rest, self._num_offers, self._num_early = Arm.COMPILED, 0, 0, 0
        _turn.give_up(self)
        self._wait()

    def _wait(self) -> None:
        self._trial: ABTimer | None = None
        self._seconds: dict[Arm, float] = {}  # of the arms that were tried so far
        self._num_warm_up = 0  # calls of the third arm before its trial
        self._followers: weakref.WeakSet[Decision] | None = None
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

    def leads(self, other: Decision) -> bool:
        """True if ``other`` goes the same way, and is decided with this."""
        if self._followers is None or self._thread != other._thread or CLOCK() - self.last_call > _IDLE:
            return False
        self._followers.add(other)
        return True

    def _next(self) -> Arm:
        if self._trial is None:
            if not (self._is_settled or self._is_slow) or not _turn.take(self):
                return Arm.COMPILED
            self._trial = ABTimer(self._clock, first=Arm.COMPILED if self._is_settled else Arm.EAGER)
            self._followers = weakref.WeakSet() if num_undecided() > _MANY else None
        elif self._num_quiet == 0 and not self._is_slow and self._num_calls < _MOST_CALLS:
            self._trial.spoil()
        elif self._num_warm_up:
            self._num_warm_up -= 1
            return Arm.CAPTURED
        arm = self._trial.next()
        if (verdict := self._trial.verdict) is not None:
            self._trial = self._trial.in_rounds() or self._next_trial(verdict)
            verdict = Verdict(verdict.chosen, self._seconds)
            for decision in (self, *(self._followers or ())) if self._trial is None else ():
                decision._obey(verdict)
        return arm

    def _next_trial(self, verdict: Verdict) -> ABTimer | None:
        """That of the third arm against the faster of two, if it may be faster still."""
        self._seconds |= verdict.seconds
        is_last = bool(self._followers) or Arm.CAPTURED in self._seconds or not self._may_capture()
        if is_last or self._seconds[Arm.COMPILED] < _CLEARLY_COMPILED * self._seconds[Arm.EAGER]:
            return None
        CREDIT.refill()
        self._num_warm_up = _WARM_UP
        return ABTimer(self._clock, (verdict.chosen, Arm.CAPTURED))

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
        self.verdict, self.chosen, self.num_rest = verdict, verdict.chosen, self._num_until_next(verdict)
        self.tell = counter_of(Uncompiled(False, SLOWER, f"{self._name}: {verdict}", "", _ADVICE))
        log("perf", f"{self._name} runs {verdict.how}: {verdict}")
        self._num_offers = num_offers()
        _turn.give_up(self)
        self._wait()

    def _num_until_next(self, verdict: Verdict) -> int:
        """How many calls the verdict holds for: fewer where something was still compiled, or waited for its budget."""
        if self._is_settled:
            return _CALLS_UNTIL_NEXT
        self._num_early += 1
        seconds = _SECONDS_UNTIL_NEXT * 2 ** (self._num_early - 1)
        return min(_CALLS_UNTIL_NEXT, max(_QUIET_CALLS, int(seconds / max(verdict.seconds[Arm.EAGER], 1e-6))))

    @property
    def is_outdated(self) -> bool:
        """True if a Program has got other code since the verdict: what was slower than eager may not be any more."""
        return self.chosen is not Arm.COMPILED and self._num_offers != num_offers()


def trial_clock() -> Callable[[], float]:
    """Beside an accelerator, what passes; else what this thread computes, so that other processes do not disturb the trial.

    Without what compiling takes, which budgets bound.
    """
    clock = time.perf_counter if torch.accelerator.is_available() else time.thread_time
    return lambda: clock() - seconds_paid()


class _Turn:
    """Whose trial it is."""

    def __init__(self) -> None:
        self._holder: weakref.ref[Decision] | None = None

    def holder(self) -> Decision | None:
        return self._holder() if self._holder is not None else None

    def take(self, asker: Decision) -> bool:
        """True if ``asker`` may try: it is nobody's turn, or that of one that is not called any more."""
        holder = self.holder()
        if holder is None or asker.last_call - holder.last_call > _IDLE:
            self._holder = weakref.ref(asker)
        return self.is_of(asker)

    def is_of(self, asker: Decision) -> bool:
        return self.holder() is asker

    def give_up(self, asker: Decision) -> None:
        if self.is_of(asker):
            self._holder = None


_turn = _Turn()
_known: weakref.WeakSet[Decision] = weakref.WeakSet()


def verdicts() -> list[Verdict]:
    """Of all trials so far."""
    return [decision.verdict for decision in list(_known) if decision.verdict is not None]


def is_undecided() -> bool:
    """True while a trial of something that is called has not ended, or not begun."""
    return num_undecided() > 0


def num_undecided() -> int:
    return sum(decision.is_undecided for decision in list(_known))


def forget_verdicts() -> None:
    for decision in list(_known):
        decision.forget()
