"""Which of two ways to run a step is faster, by the times at which calls begin: some are made one way, some the other, in turn.

    ABTimer(clock, arms): next() -> Arm, to be asked as each call begins        verdict: Verdict | None, once it is over

The first of the two arms stays unless the second is faster; below they are compiled and eager, as they mostly are.

What counts is the time from one call to the next: the call itself, the backward pass after it, wherever that is called, and all
else that a step does, which is the same both ways. A block is six calls in a row, so that a program with two or three calls in
a step has as many of each in it. The blocks go compiled, eager, eager, compiled, ...: a machine that grows slower or faster
does so to both. Now and then much lies between two calls: an evaluation, an episode. Such a long time does not count to the
block that it happens to fall into, but to each by its share. Eager must be faster by a twentieth, and in four of five pairs of
blocks, or by a fiftieth in all; after two pairs it may be clear already that it is not, or that it takes less than half. If
after five both have won some, there are six more.

A step may be slow, and compiled much slower: then a block ends as soon as compiled calls have taken half a second more than as
many of the slowest that ran eagerly, and two such blocks are enough.

Where calls come in rounds, with a long time between two of them (steps of an episode, whose backward pass lies at its end), the
long times are most of what differs, and cannot be told apart by calls. If they are a tenth of all, or half where there are one
or two, it is tried once more, and a block goes on to the end of a round.
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
_MOST_LOST = 0.5  # seconds
_MOST_IN_ROUNDS = 0.1  # of the time
_MOST_IN_FEW = 0.5  # where there are one or two of them: these may be something else, as Python's collector
_FEW = 2
_LONGEST_ROUND = 1000  # calls


class Arm(enum.Enum):
    """A way to make a call. ``CAPTURED``: eagerly, but for the backward passes in it, which are captured and replayed."""

    COMPILED = "compiled"
    EAGER = "eager"
    CAPTURED = "captured"


_WORDS = {Arm.COMPILED: "compiled", Arm.EAGER: "eagerly", Arm.CAPTURED: "with backward passes captured"}


@dataclasses.dataclass(frozen=True)
class Verdict:
    """What to run from now on, and what it was chosen by.

    Attributes:
        chosen: one of the arms that were tried.
        seconds: from call to call, of each arm; the median of the blocks.
    """

    chosen: Arm
    seconds: dict[Arm, float]

    def __str__(self) -> str:
        (first, seconds), *others = self.seconds.items()
        more = (f", {_milliseconds(seconds)} {_WORDS[arm]}" for arm, seconds in others)
        return f"{_milliseconds(seconds)} from call to call {_WORDS[first]}{''.join(more)}"

    @property
    def how(self) -> str:
        """As what the call runs from now on."""
        return "eagerly, its backward passes captured" if self.chosen is Arm.CAPTURED else _WORDS[self.chosen]


@dataclasses.dataclass(frozen=True)
class Block:
    """The seconds from call to call of six calls, or more in rounds, or fewer where they were too slow."""

    arm: Arm
    seconds: tuple[float, ...]

    def mean(self, all_seconds: Sequence[float], limit: float) -> float:
        """As if as many of them were long, which is more than ``limit``, as of all are."""
        share = sum(each > limit for each in all_seconds) / len(all_seconds)
        return share * self._usual(all_seconds, limit, True) + (1 - share) * self._usual(all_seconds, limit, False)

    def _usual(self, all_seconds: Sequence[float], limit: float, is_long: bool) -> float:
        """Of its long times or of the others; where it has none, of all."""
        if own := [each for each in self.seconds if (each > limit) is is_long]:
            return statistics.fmean(own)
        return statistics.median([each for each in all_seconds if (each > limit) is is_long] or [0.0])

    def lost_to(self, eager: Block) -> float:
        """How many seconds these calls took more than as many of the slowest of ``eager``."""
        number, slowest = len(self.seconds), sorted(eager.seconds, reverse=True)
        return sum(self.seconds) - sum(slowest[:number]) * max(1.0, number / len(slowest))


class ABTimer:
    """See the module's docstring.

    Arguments:
        arms: what stays in doubt, and what is to be faster.
        first: the arm of the first block: eager's, where calls are so slow that few should be compiled before it is known.
        round_ends: where calls come in rounds, the seconds from call to call of which more end one.
    """

    def __init__(
        self,
        clock: Callable[[], float],
        arms: tuple[Arm, Arm] = (Arm.COMPILED, Arm.EAGER),
        first: Arm | None = None,
        round_ends: float | None = None,
    ) -> None:
        self.verdict: Verdict | None = None
        self._clock, self._arms, self._first, self._round_ends = clock, arms, first or arms[0], round_ends
        self._blocks: list[Block] = []
        self._begun: list[float] = []  # when each call of this block began
        self._since = clock()

    def next(self) -> Arm:
        """Which arm the call that now begins goes to."""
        now = self._clock()
        if self._begun and self._is_over(now):
            self._end_block(now)
        if self.verdict is not None:
            return self.verdict.chosen
        self._begun.append(now)
        return self._arm

    def spoil(self) -> None:
        """Something else came in between: the block begins anew with the next call."""
        self._begun.clear()

    def in_rounds(self) -> ABTimer | None:
        """The trial that decides in place of this one, which is over; None where this one does."""
        limit, seconds = self._limit, self._all_seconds
        long = [each for each in seconds if each > limit]
        most = _MOST_IN_FEW if len(long) <= _FEW else _MOST_IN_ROUNDS
        if self._round_ends is not None or sum(long) <= most * sum(seconds):
            return None
        return ABTimer(self._clock, self._arms, self._first, limit)

    @property
    def _arm(self) -> Arm:
        is_first = len(self._blocks) % 4 in (0, 3)
        return self._first if is_first else next(arm for arm in self._arms if arm is not self._first)

    @property
    def _all_seconds(self) -> list[float]:
        return [each for arm in self._arms for each in self._seconds_of(arm)]

    @property
    def _limit(self) -> float:
        """Seconds from call to call of which more are long."""
        return _LONG * max(statistics.median(self._seconds_of(arm) or [0.0]) for arm in self._arms)

    def _seconds_of(self, arm: Arm) -> list[float]:
        return [each for block in self._blocks if block.arm is arm for each in block.seconds]

    def _is_over(self, now: float) -> bool:
        """Whether the block is."""
        if now - self._since > _MOST_LOST and self._lost(Block(self._arm, self._seconds(now))) > _MOST_LOST:
            return True
        if len(self._begun) < _CALLS or self._round_ends is None:
            return len(self._begun) >= _CALLS
        return now - self._begun[-1] > self._round_ends or len(self._begun) >= _LONGEST_ROUND

    def _seconds(self, now: float) -> tuple[float, ...]:
        return tuple(end - begin for begin, end in itertools.pairwise([*self._begun, now]))

    def _lost(self, present: Block | None = None) -> float:
        """How many seconds the first arm's calls have lost, for certain; 0 where one block of theirs has not."""
        stays, challenger = self._arms
        blocks = [*self._blocks, *([present] if present else [])]
        faster = next((block for block in self._blocks if block.arm is challenger), None)
        if faster is None or (present and present.arm is challenger):
            return 0.0
        lost = [block.lost_to(faster) for block in blocks if block.arm is stays]
        return sum(lost) if min(lost, default=0.0) > 0 else 0.0

    def _end_block(self, now: float) -> None:
        self._blocks.append(Block(self._arm, self._seconds(now)))
        self._begun.clear()
        if len(self._blocks) % 2 == 0:
            self._judge(*(self._means(arm) for arm in self._arms))

    def _means(self, arm: Arm) -> list[float]:
        if self._round_ends is not None:
            return [statistics.fmean(block.seconds) for block in self._blocks if block.arm is arm]
        seconds, limit = self._all_seconds, self._limit
        return [block.mean(seconds, limit) for block in self._blocks if block.arm is arm]

    def _judge(self, staying: list[float], challenging: list[float]) -> None:
        num_pairs, num_won = len(challenging), sum(a > b for a, b in zip(staying, challenging, strict=True))
        if num_pairs >= _PAIRS_IF_CLEAR and num_won == num_pairs and self._lost() > _MOST_LOST:
            self._choose(True, staying, challenging)
        elif num_pairs == _PAIRS_IF_CLEAR and (num_won == 0 or _are_all_clear(staying, challenging)):
            self._choose(num_won > 0, staying, challenging)
        elif num_pairs == _MOST_PAIRS or (num_pairs == _PAIRS and num_won not in _UNCLEAR):
            margin = _MARGIN_IF_ALL if num_won == num_pairs else _MARGIN
            is_faster = statistics.median(staying) > margin * statistics.median(challenging)
            self._choose(is_faster and num_won >= _SHARE * num_pairs, staying, challenging)

    def _choose(self, is_challenger: bool, staying: list[float], challenging: list[float]) -> None:
        medians = statistics.median(staying), statistics.median(challenging)
        self.verdict = Verdict(self._arms[is_challenger], dict(zip(self._arms, medians, strict=True)))


def _are_all_clear(staying: list[float], challenging: list[float]) -> bool:
    return all(a > _MARGIN_IF_CLEAR * b for a, b in zip(staying, challenging, strict=True))


def _milliseconds(seconds: float) -> str:
    return f"{1000 * seconds:.3g} ms"
