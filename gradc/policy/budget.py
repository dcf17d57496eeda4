"""How long Dynamo and gradc may compile before a program goes on: so many seconds at a stretch, and a tenth of the time in all.

    budget_of_options: (options, name) -> Budget      Budget: allows(code) -> bool, spending(code) -> a context, refuse(code)
    paid: a context                                   seconds_paid: () -> what this thread has paid for so far

What comes to be compiled when nothing is left runs eagerly, counted, and is tried again when there is something left. So the
first step of a program that breaks into a hundred pieces does not take half a minute, and a long training is compiled all the
same: a tenth of the time that passes between compilations is added, up to the seconds that were given. What was begun is never
cut short. Debts grow no greater than that, either: one large graph that takes a minute is waited out in ten times the seconds.
What was compiled before, and is to be compiled again, for another length or another number, waits until half of what it cost
is there: a loop that is unrolled for each length would run into debt each time. All that a process compiles is paid from one
purse; what was given seconds of its own has its own. See Note [What pays].
"""

from __future__ import annotations

import contextlib
import dataclasses
import sys
import threading
import time
import types
import weakref
from collections.abc import Callable, Iterator
from typing import Any

from gradc.config import config
from gradc.journal import counter_of
from gradc.options import CompileOptions
from gradc.policy.progress import is_at_terminal, telling
from gradc.torch_private.dynamo import Uncompiled

_SHARE = 0.1  # of the time that passes
_AGAIN = 0.5  # of what it cost before has to be left
_LONG = 2.0  # seconds after which somebody at a terminal is told, and again when they have doubled
_ADVICE = (
    'Give it more time: options={"compile_seconds": 60}, or None for no limit; GRADC_COMPILE_SECONDS for a whole process.\n'
    "  Or let graphs break less often: gradc.explain names where."
)


@dataclasses.dataclass(frozen=True)
class Clock:
    """``worked``: seconds that this thread has computed; ``passed``: seconds on the wall."""

    worked: Callable[[], float] = time.thread_time
    passed: Callable[[], float] = time.monotonic


CLOCK = Clock()


class Purse:
    """``seconds``: what it begins with, and never exceeds; None: no limit."""

    def __init__(self, seconds: float | None, clock: Clock = CLOCK) -> None:
        self._seconds, self._clock = seconds, clock
        self.refill()

    def refill(self) -> None:
        """As at the beginning."""
        self._left, self._seen = self._seconds or 0.0, self._clock.passed()

    def allows(self, least: float = 0.0) -> bool:
        """Whether something may be compiled now: so many seconds are left, or all that it can hold."""
        if self._seconds is None:
            return True
        now = self._clock.passed()
        self._left, self._seen = min(self._seconds, self._left + _SHARE * (now - self._seen)), now
        return self._left > 0 and self._left >= min(least, self._seconds)

    def pay(self, seconds: float) -> None:
        """What passed meanwhile adds nothing."""
        if self._seconds is not None:
            self._left, self._seen = max(self._left - seconds, -self._seconds), self._clock.passed()


class Budget:
    """The time for one compiled function or module, and what it went into.

    Attributes:
        name: the user's, of what is compiled.
        spent: seconds so far.
        num_functions: how many functions of Python they went into.
        num_calls: how many calls of torch's their graphs hold.
        num_refused: how many calls found nothing left.
    """

    def __init__(self, purse: Purse, name: str, clock: Clock = CLOCK) -> None:
        self.name, self._purse, self._clock = name, purse, clock
        self._begin()

    def refill(self) -> None:
        """As at the beginning, and its purse, too."""
        self._begin()
        self._purse.refill()

    def _begin(self) -> None:
        self.spent, self.num_functions, self.num_calls, self.num_refused, self._told_next = 0.0, 0, 0, 0, _LONG
        self._tellers: weakref.WeakKeyDictionary[types.CodeType, Callable[[], None]] = weakref.WeakKeyDictionary()
        self._costs: weakref.WeakKeyDictionary[types.CodeType, float] = weakref.WeakKeyDictionary()  # the last

    def allows(self, code: types.CodeType) -> bool:
        """Whether ``code`` may be compiled now: again only with a part of what it cost before left."""
        return self._purse.allows(_AGAIN * self._costs.get(code, 0.0))

    @contextlib.contextmanager
    def spending(self, code: types.CodeType) -> Iterator[None]:
        """What is computed inside, to compile ``code``, is paid for."""

        def spend(seconds: float) -> None:
            self._costs[code] = seconds
            self._spend(seconds)

        with telling(lambda seconds: self._tell_if_long(self.spent + seconds)), _metered(spend, self._clock):
            yield

    def _spend(self, seconds: float) -> None:
        self.spent += seconds
        self.num_functions += 1
        self._purse.pay(seconds)
        self._tell_if_long(self.spent)

    def _tell_if_long(self, seconds: float) -> None:
        if seconds > self._told_next:
            self._told_next = 2 * seconds
            _tell(f"gradc: compiling {self.name} has taken {seconds:.1f} s so far (functions: {self.num_functions})")

    def refuse(self, code: types.CodeType) -> None:
        """Count a call of ``code``, which runs eagerly since nothing is left."""
        self.num_refused += 1
        if code not in self._tellers:
            numbers = f"(functions: {self.num_functions}, calls in their graphs: {self.num_calls})"
            detail = f"{self.name} has taken {self.spent:.1f} s to compile {numbers}"
            where = f"File: {code.co_filename}:{code.co_firstlineno} in {code.co_name}"
            self._tellers[code] = counter_of(Uncompiled(False, "compile budget", detail, where, _ADVICE))
        self._tellers[code]()


def _tell(text: str) -> None:
    """Somebody at a terminal; nobody else."""
    if is_at_terminal():
        print(text, file=sys.stderr, flush=True)


# ---- who pays


class _Local(threading.local):
    paid = 0.0  # in all
    inside: float | None = None  # of what is paid for now: what is paid for by others


_local = _Local()


@contextlib.contextmanager
def _metered(pay: Callable[[float], None], clock: Clock) -> Iterator[None]:
    """Give ``pay`` the seconds that this thread computes inside, but for those that are paid for by others there."""
    outer, begun, _local.inside = _local.inside, clock.worked(), 0.0
    try:
        yield
    finally:
        seconds, others = clock.worked() - begun, _local.inside or 0.0
        _local.inside = None if outer is None else outer + seconds
        if outer is None:
            _local.paid += seconds
        pay(seconds - others)


@contextlib.contextmanager
def paid(pay: Callable[[float], None] | None = None) -> Iterator[None]:
    """What is computed inside is no part of a step's own time; ``pay``, or else the process's purse, pays for it."""
    with _metered(pay or _purse_of_all(config.compile_seconds).pay, CLOCK):
        yield


def seconds_paid() -> float:
    """How long this thread has computed for what is paid for: compiled, captured."""
    return _local.paid


_budgets: weakref.WeakSet[Budget] = weakref.WeakSet()
_purses: dict[float | None, Purse] = {}


def _purse_of_all(seconds: float | None) -> Purse:
    """The purse of what was given no seconds of its own, in this process."""
    return _purses.setdefault(seconds, Purse(seconds, CLOCK))


def budget_of_options(options: CompileOptions, name: str) -> Budget:
    """A new budget. Under ``fullgraph=True`` it has no limit: there, nothing may run eagerly."""
    asked: Any = dict(options.options)
    if options.fullgraph:
        purse = Purse(None, CLOCK)
    else:
        purse = Purse(asked["compile_seconds"], CLOCK) if "compile_seconds" in asked else _purse_of_all(config.compile_seconds)
    budget = Budget(purse, name, CLOCK)
    _budgets.add(budget)
    return budget


def refill_budgets() -> None:
    """All of them, as when everything that was compiled is forgotten."""
    for purse in list(_purses.values()):
        purse.refill()
    for budget in list(_budgets):
        budget.refill()
