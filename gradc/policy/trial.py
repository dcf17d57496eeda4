"""Which is faster, a compiled step or eager, by the times at which calls begin: some are made compiled, some eagerly, in turn.

    Trial(clock): next() -> Arm, to be asked as each call begins      verdict: Verdict | None, once it is over

What counts is the time from one call to the next: the call itself, the backward pass after it, wherever that is called, and all
else that a step does, which is the same both ways. A block is six calls in a row, so that a program with two or three calls in
a step has as many of each in it. The blocks go compiled, eager, eager, compiled, ...: a machine that grows slower or faster
does so to both. Now and then much lies between two calls: an evaluation, an episode. Such a long time does not count to the
block that it happens to fall into, but to each by its share. Eager must be faster by a twentieth, and in four of five pairs of
blocks, or by a fiftieth in all; after two pairs it may be clear already that it is not, or that it takes less than half. If
after five both have won some, there are six more.
"""

from __future__ import annotations

import dataclasses
import enum
import itertools
import statistics
from collections.abc import Callable, Sequence

_CALLS = 6  # in a block
_PAIRS = 5
_PAIRS_IF_CLEAR = 2
_MOST_PAIRS = 11
_UNCLEAR = (2, 3)  # of five: won by the one as often as by the other
_SHARE = 0.7  # of the pairs, at least, that eager has to win
_MARGIN = 1.05
_MARGIN_IF_ALL = 1.02  # where eager wins all pairs: a step may have several functions that each lose a little
_MARGIN_IF_CLEAR = 2.0
_LONG = 4.0  # times the median: see the module's docstring


class Arm(enum.Enum):
    """Which of the two a call is made by."""

    COMPILED = "compiled"
    EAGER = "eager"


@dataclasses.dataclass(frozen=True)
class Verdict:
    """What to run from now on, and what it was chosen by.

    Attributes:
        chosen: ``Arm.COMPILED`` or ``Arm.EAGER``.
        compiled: seconds from call to call where calls ran compiled; the median of the blocks.
        eager: the same where they ran eagerly.
    """

    chosen: Arm
    compiled: float
    eager: float

    def __str__(self) -> str:
        return f"{_milliseconds(self.compiled)} from call to call compiled, {_milliseconds(self.eager)} eagerly"


@dataclasses.dataclass(frozen=True)
class Block:
    """The seconds from call to call of six calls."""

    arm: Arm
    seconds: tuple[float, ...]

    def mean(self, all_seconds: Sequence[float]) -> float:
        """As if as many of them were long as of all are."""
        limit = _LONG * statistics.median(all_seconds)
        share = sum(each > limit for each in all_seconds) / len(all_seconds)
        return share * self._usual(all_seconds, limit, True) + (1 - share) * self._usual(all_seconds, limit, False)

    def _usual(self, all_seconds: Sequence[float], limit: float, is_long: bool) -> float:
        """Of its long times or of the others; where it has none, of all."""
        if own := [each for each in self.seconds if (each > limit) is is_long]:
            return statistics.fmean(own)
        return statistics.median([each for each in all_seconds if (each > limit) is is_long] or [0.0])


class Trial:
    """See the module's docstring."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.verdict: Verdict | None = None
        self._clock = clock
        self._blocks: list[Block] = []
        self._begun: list[float] = []  # when each call of this block began

    def next(self) -> Arm:
        """Which arm the call that now begins goes to."""
        if len(self._begun) == _CALLS:
            self._end_block()
        if self.verdict is not None:
            return self.verdict.chosen
        self._begun.append(self._clock())
        return self._arm

    def spoil(self) -> None:
        """Something else came in between: the block begins anew with the next call."""
        self._begun.clear()

    @property
    def _arm(self) -> Arm:
        return Arm.COMPILED if len(self._blocks) % 4 in (0, 3) else Arm.EAGER

    def _end_block(self) -> None:
        times = [*self._begun, self._clock()]
        self._blocks.append(Block(self._arm, tuple(end - begin for begin, end in itertools.pairwise(times))))
        self._begun.clear()
        if len(self._blocks) % 2 == 0:
            self._judge(*(self._means(arm) for arm in Arm))

    def _means(self, arm: Arm) -> list[float]:
        all_seconds = [each for block in self._blocks for each in block.seconds]
        return [block.mean(all_seconds) for block in self._blocks if block.arm is arm]

    def _judge(self, compiled: list[float], eager: list[float]) -> None:
        num_pairs, num_won = len(eager), sum(a > b for a, b in zip(compiled, eager, strict=True))
        if num_pairs == _PAIRS_IF_CLEAR and (num_won == 0 or _are_all_clear(compiled, eager)):
            self._choose(Arm.EAGER if num_won else Arm.COMPILED, compiled, eager)
        elif num_pairs == _MOST_PAIRS or (num_pairs == _PAIRS and num_won not in _UNCLEAR):
            margin = _MARGIN_IF_ALL if num_won == num_pairs else _MARGIN
            is_faster = statistics.median(compiled) > margin * statistics.median(eager)
            self._choose(Arm.EAGER if is_faster and num_won >= _SHARE * num_pairs else Arm.COMPILED, compiled, eager)

    def _choose(self, arm: Arm, compiled: list[float], eager: list[float]) -> None:
        self.verdict = Verdict(arm, statistics.median(compiled), statistics.median(eager))


def _are_all_clear(compiled: list[float], eager: list[float]) -> bool:
    return all(a > _MARGIN_IF_CLEAR * b for a, b in zip(compiled, eager, strict=True))


def _milliseconds(seconds: float) -> str:
    return f"{1000 * seconds:.3g} ms"
