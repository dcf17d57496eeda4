"""How long Dynamo and gradc may compile before a program goes on: so many seconds at a stretch, and a tenth of the time in all.

    budget_of_options: (options, name) -> Budget      Budget: allows() -> bool, spending() -> a context, refuse(code)

What comes to be compiled when nothing is left runs eagerly, counted, and is tried again when there is something left. So the
first step of a program that breaks into a hundred pieces does not take half a minute, and a long training is compiled all the
same: a tenth of the time that passes between compilations is added, up to the seconds that were given. What was begun is never
cut short. Debts grow no greater than that, either: one large graph that takes a minute is waited out in ten times the seconds.
See Note [What pays].
"""

from __future__ import annotations

import contextlib
import dataclasses
import sys
import time
import types
import weakref
from collections.abc import Callable, Iterator
from typing import Any

from gradc.config import config
from gradc.frontend.progress import is_at_terminal, telling
from gradc.journal import counter_of
from gradc.options import CompileOptions
from gradc.torch_private.dynamo import Uncompiled

_SHARE = 0.1  # of the time that passes
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


class Budget:
    """The time for one compiled function or module. ``seconds``: what it begins with, and never exceeds; None: no limit.

    Attributes:
        name: the user's, of what is compiled.
        spent: seconds so far.
        num_functions: how many functions of Python they went into.
        num_calls: how many calls of torch's their graphs hold.
        num_refused: how many calls found nothing left.
    """

    def __init__(self, seconds: float | None, name: str, clock: Clock = CLOCK) -> None:
        self.name, self._seconds, self._clock = name, seconds, clock
        self.refill()

    def refill(self) -> None:
        """As at the beginning."""
        self.spent, self.num_functions, self.num_calls, self.num_refused, self._told_next = 0.0, 0, 0, 0, _LONG
        self._left, self._seen = self._seconds or 0.0, self._clock.passed()
        self._tellers: weakref.WeakKeyDictionary[types.CodeType, Callable[[], None]] = weakref.WeakKeyDictionary()

    def allows(self) -> bool:
        """Whether something may be compiled now."""
        if self._seconds is None:
            return True
        now = self._clock.passed()
        self._left, self._seen = min(self._seconds, self._left + _SHARE * (now - self._seen)), now
        return self._left > 0

    @contextlib.contextmanager
    def spending(self) -> Iterator[None]:
        """What is computed inside is paid for."""
        begun = self._clock.worked()
        try:
            with telling(lambda seconds: self._tell_if_long(self.spent + seconds)):
                yield
        finally:
            self._spend(self._clock.worked() - begun)

    def _spend(self, seconds: float) -> None:
        self.spent += seconds
        self.num_functions += 1
        if self._seconds is not None:
            self._left, self._seen = max(self._left - seconds, -self._seconds), self._clock.passed()
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


_budgets: weakref.WeakSet[Budget] = weakref.WeakSet()


def budget_of_options(options: CompileOptions, name: str) -> Budget:
    """A new budget. Under ``fullgraph=True`` it has no limit: there, nothing may run eagerly."""
    seconds: Any = dict(options.options).get("compile_seconds", config.compile_seconds)
    budget = Budget(None if options.fullgraph else seconds, name, CLOCK)
    _budgets.add(budget)
    return budget


def refill_budgets() -> None:
    """All of them, as when everything that was compiled is forgotten."""
    for budget in list(_budgets):
        budget.refill()
