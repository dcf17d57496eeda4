"""Who judges what, and when: parts in their order, each for its share of the time, in several processes at once.

    run: (target, names of parts, seconds, number of processes, folder, tell) -> list of Left

Each part may take a share of the seconds that are left when it begins; what it leaves over is for those that follow. The first
items of the next part are judged while the last ones of a part still are, but for one that is timed: that is alone.
"""

from __future__ import annotations

import dataclasses
import pathlib
import random
import threading
import time
from collections.abc import Callable, Sequence

from tests.cuda.parts import DRAWN, PARTS, Part, Target
from tests.cuda.verdict import Status, Verdict
from tests.cuda.worker import Worker

GRACE = 12.0  # seconds, for what runs when the time is over
FEWEST_SECONDS = 12.0  # for what shares the time of its part evenly


@dataclasses.dataclass(frozen=True)
class Job:
    """``seconds``: how long it may go on, if it knows; it is ended after ``limit``."""

    part: str
    item: str
    seconds: float
    limit: float


@dataclasses.dataclass(frozen=True)
class Left:
    """What became of a part: so many of its items were judged, in so many seconds."""

    part: str
    judged: int
    items: int
    seconds: float


class Schedule:
    """Jobs, for the threads that ask for them; thread k takes part where a part has more than k jobs at once."""

    def __init__(self, target: Target, names: Sequence[str], seconds: float) -> None:
        self._target, self._waiting, self._end = target, list(names), time.monotonic() + seconds
        self.last = self._end + GRACE  # when what still runs is ended
        self._part: Part | None = None
        self._name, self._items, self._judged, self._count = "", list[str](), 0, 0
        self._begun = self._part_end = 0.0
        self._running = 0
        self._changed = threading.Condition()
        self.left: list[Left] = []
        self.failed: list[Verdict] = []  # of parts of which no items are known

    def next(self, number: int) -> Job | None:
        """The next job of thread ``number``; None if there is none for it any more."""
        with self._changed:
            while True:
                self._advance()
                if self._part is None or number >= self._part.jobs:
                    return None
                if not self._part.is_timed or not self._running:
                    return self._taken(self._part)
                self._changed.wait()

    def done(self) -> None:
        """After each job."""
        with self._changed:
            self._running -= 1
            self._changed.notify_all()

    def _taken(self, part: Part) -> Job:
        self._running += 1
        self._judged += 1
        item, now = self._items.pop(0), time.monotonic()
        share = (self._part_end - now) / (len(self._items) + 1) if part.is_timed else part.seconds
        seconds = min(part.seconds, max(FEWEST_SECONDS, share))
        return Job(self._name, item, seconds, min(2 * seconds, self.last - now))

    def _advance(self) -> None:
        while self._part is None or not self._items or time.monotonic() > self._part_end:
            if self._part is not None:
                self.left.append(Left(self._name, self._judged, self._count, round(time.monotonic() - self._begun, 1)))
                self._part = None
            if not self._waiting:
                return
            self._begin(self._waiting.pop(0))

    def _begin(self, name: str) -> None:
        self._name, self._part, self._judged, self._items = name, PARTS[name], 0, []
        try:
            self._items = self._part.items(self._target)
        except Exception as error:
            why = f"it is not known what to judge: {type(error).__name__}: {error}"
            self.failed.append(Verdict(name, "", Status.CRASHES, why))
        if name in DRAWN:
            random.Random(self._target.seed).shuffle(self._items)
        self._count, self._begun = len(self._items), time.monotonic()
        weights = sum(PARTS[each].weight for each in (name, *self._waiting))
        self._part_end = self._begun + (self._end - self._begun) * self._part.weight / weights


def run(
    target: Target, names: Sequence[str], seconds: float, jobs: int, folder: pathlib.Path, tell: Callable[[Verdict], None],
    make_worker: Callable[[Target, pathlib.Path], Worker] = Worker,
) -> list[Left]:
    """``tell`` is called with each verdict, by one thread at a time. Logs of the processes lie in ``folder``."""
    schedule, telling = Schedule(target, names, seconds), threading.Lock()

    def told(verdict: Verdict) -> None:
        with telling:
            is_cut = verdict.status is Status.HANGS and time.monotonic() > schedule.last
            tell(dataclasses.replace(verdict, status=Status.OTHER, detail="the time was over") if is_cut else verdict)

    def work(number: int) -> None:
        worker, job = make_worker(target, folder / f"worker-{number}.log"), None
        try:
            worker.begin(names[0])
            while job := schedule.next(number):
                try:
                    for verdict in worker.judge(job.part, job.item, job.seconds, job.limit):
                        told(verdict)
                finally:
                    schedule.done()
        except Exception as error:  # of this program, or there is no device
            part, item = (job.part, job.item) if job else (names[0], "")
            told(Verdict(part, item, Status.CRASHES, f"{type(error).__name__}: {error}"))
        finally:
            worker.end()

    threads = [threading.Thread(target=work, args=(number,), daemon=True) for number in range(jobs)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for verdict in schedule.failed:
        tell(verdict)
    return schedule.left
