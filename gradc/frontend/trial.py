"""Which is faster, a compiled step or eager, by the times at which calls begin: some are made compiled, some eagerly, in turn.

    Trial(clock): next() -> Arm, to be asked as each call begins      verdict: Verdict | None, once it is over

What counts is the time from one call to the next: the call itself, the backward pass after it, wherever that is called, and all
else that a step does, which is the same both ways. A block is six calls in a row, so that a program with two or three calls in
a step has as many of each in it. The blocks go compiled, eager, eager, compiled, ...: a machine that grows slower or faster
does so to both. Eager must be faster by a tenth, and in all pairs of blocks but one; after two pairs it may be clear already
that it is not.
"""

from __future__ import annotations

import dataclasses
import enum
import statistics
from collections.abc import Callable

_CALLS = 6  # in a block
_PAIRS = 5
_PAIRS_IF_CLEAR = 2
_MARGIN = 1.1


class Arm(enum.Enum):
    """Which of the two a call is made by."""

    COMPILED = "compiled"
    EAGER = "eager"


@dataclasses.dataclass(frozen=True)
class Verdict:
    """What to run from now on, and the seconds from call to call that it was chosen by."""

    chosen: Arm
    compiled: float
    eager: float

    def __str__(self) -> str:
        return f"{_milliseconds(self.compiled)} from call to call compiled, {_milliseconds(self.eager)} eagerly"


class Trial:
    """See the module's docstring."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.verdict: Verdict | None = None
        self._clock = clock
        self._times: dict[Arm, list[float]] = {Arm.COMPILED: [], Arm.EAGER: []}
        self._num_calls, self._begun = 0, 0.0

    def next(self) -> Arm:
        """Which arm the call that now begins goes to."""
        if self._num_calls == _CALLS:
            self._end_block()
        if self.verdict is not None:
            return self.verdict.chosen
        if self._num_calls == 0:
            self._begun = self._clock()
        self._num_calls += 1
        return self._arm

    def spoil(self) -> None:
        """Something else came in between: the block begins anew with the next call."""
        self._num_calls = 0

    @property
    def _num_blocks(self) -> int:
        return sum(map(len, self._times.values()))

    @property
    def _arm(self) -> Arm:
        return Arm.COMPILED if self._num_blocks % 4 in (0, 3) else Arm.EAGER

    def _end_block(self) -> None:
        self._times[self._arm].append((self._clock() - self._begun) / _CALLS)
        self._num_calls = 0
        if self._num_blocks % 2 == 0:
            self._judge()

    def _judge(self) -> None:
        compiled, eager = self._times[Arm.COMPILED], self._times[Arm.EAGER]
        num_won = sum(a > b for a, b in zip(compiled, eager, strict=True))
        if len(eager) == _PAIRS_IF_CLEAR and num_won == 0:
            self._choose(Arm.COMPILED)
        elif len(eager) == _PAIRS:
            is_faster = num_won >= _PAIRS - 1 and statistics.median(compiled) > _MARGIN * statistics.median(eager)
            self._choose(Arm.EAGER if is_faster else Arm.COMPILED)

    def _choose(self, arm: Arm) -> None:
        self.verdict = Verdict(arm, *(statistics.median(self._times[each]) for each in Arm))


def _milliseconds(seconds: float) -> str:
    return f"{1000 * seconds:.3g} ms"
