"""Train one case one way, in this process: is each step the same bits as eager's, and how long does it take?

    run: (case, Way) -> Result              python -m tests.world.harness.run CASE WAY FILE   writes it as JSON; --verdict at
                                        the end: nothing is timed but the first step

Eager trains twice from the same seeds (is the case reproducible?), then the compiled one does. After that the compiled one
goes on until it is settled (see tests.world.harness.settling). Eager follows to the same step, for what is trained further may
have more to do: a solver takes as many steps as its function asks for. Then the two make a step each in turns, for the settled
ratio.
All times are of the process, not of the wall: other processes are none of the case's doing.
"""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import importlib
import json
import os
import pathlib
import random
import re
import statistics
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy
import torch

from gradc.journal import Event, Fallback, Uncompiled, counters, listening
from gradc.policy.ab_timer import Arm
from gradc.policy.profitability import verdicts
from tests.observe import Observation, differences, observe
from tests.world.harness.settling import Settled, settle
from tests.world.harness.torchvision_ops import declare_missing_ops
from tests.world.harness.training import EAGERLY, WAYS, Training, Way

NUM_STEPS = 4
MAX_ROUNDS = 2000  # for the shortest steps: those of a fraction of a second are disturbed by other processes
SECONDS_OF_ROUNDS = 4.0
SHOWN = 6


class Verdict(enum.StrEnum):
    """What became of a case, one way."""

    BITWISE = "bitwise"
    DIFFERS = "differs"
    RAISES = "raises"
    IRREPRODUCIBLE = "not reproducible"
    TIMED_OUT = "timed out"
    CRASHED = "crashed"


@dataclasses.dataclass(frozen=True)
class Result:
    """One case, one way.

    Attributes:
        differences: the first of ``num_differences``, one sentence each; the end of the traceback, if it raises.
        num_graphs: how many graphs Dynamo captured, in all steps.
        captures: how many backward passes compiled autograd captured.
        uncompiled: what was in no graph: reason -> how often in the steps that were compared. Graph breaks, above all.
        fallbacks: what ran eagerly: reason -> how often.
        places: the first that each reason was met at: reason -> detail and line.
        first_eager_s, first_s: seconds of the first step that the process computed.
        settled: how many steps there were before the ratio was taken, and whether they settled it; None where it raises.
        chosen: what the trials of gradc chose, compiled or eager, for how many functions and modules.
        ratio: settled step, this way over eager.
    """

    verdict: Verdict
    num_differences: int = 0
    differences: tuple[str, ...] = ()
    num_graphs: int = 0
    captures: int = 0
    uncompiled: dict[str, int] = dataclasses.field(default_factory=dict)
    fallbacks: dict[str, int] = dataclasses.field(default_factory=dict)
    places: dict[str, str] = dataclasses.field(default_factory=dict)
    first_eager_s: float = 0.0
    first_s: float = 0.0
    settled: Settled | None = None
    chosen: dict[str, int] = dataclasses.field(default_factory=dict)
    ratio: float | None = None


@dataclasses.dataclass(frozen=True)
class Trained:
    """What was seen after each step, the seconds of the first, and the training, to go on with."""

    seen: tuple[Observation, ...]
    first_s: float
    training: Training | None
    trace: str = ""


def run(make: Callable[[Way], Training], way: Way, is_timed: bool = True) -> Result:
    """See the module's docstring."""
    eager, again = train(make, EAGERLY), train(make, EAGERLY)
    if eager.trace:
        raise RuntimeError(f"does not train in eager:\n{eager.trace}")
    if unlike := _differences(eager, again):
        return Result(Verdict.IRREPRODUCIBLE, len(unlike), tuple(unlike[:SHOWN]))
    way.compiler.reset()
    with listening() as events:
        compiled = train(make, way)
    found, raised = _differences(eager, compiled), bool(compiled.trace)
    result = Result(
        Verdict.RAISES if raised else Verdict.DIFFERS if found else Verdict.BITWISE,
        num_differences=len(found),
        differences=tuple(without_folders(compiled.trace).splitlines()[-SHOWN:] if raised else found[:SHOWN]),
        places=_places(events),
        first_eager_s=eager.first_s,
        first_s=compiled.first_s,
        **_counted(way),
    )
    return result if raised or not is_timed else _timed_settled(result, eager, compiled, way)


def _counted(way: Way) -> dict[str, Any]:
    """What the steps that were compared have come to."""
    of_gradc = counters if way.compiler.is_gradc else {}
    return {
        "num_graphs": torch._dynamo.utils.counters["stats"]["unique_graphs"],
        "captures": of_gradc["compiled_autograd"]["captures"] if of_gradc else 0,
        "uncompiled": dict(of_gradc["uncompiled"]) if of_gradc else _graph_breaks(),
        "fallbacks": way.compiler.fallbacks(),
    }


def _timed_settled(result: Result, eager: Trained, compiled: Trained, way: Way) -> Result:
    """With the ratio of settled steps, and what it is a ratio of."""
    assert eager.training is not None and compiled.training is not None
    settled = settle(lambda: _step(compiled.training, way), NUM_STEPS)
    for _ in range(settled.num_steps - NUM_STEPS):
        _step(eager.training, EAGERLY)
    ratio = _ratio(eager.training, compiled.training, way)
    chosen = [verdict.chosen for verdict in verdicts()]
    return dataclasses.replace(
        result, settled=settled, ratio=ratio, chosen={str(arm.value): chosen.count(arm) for arm in Arm if arm in chosen}
    )


def train(make: Callable[[Way], Training], way: Way) -> Trained:
    """NUM_STEPS steps from fixed seeds."""
    _seed()
    seen: list[Observation] = []
    first, training = 0.0, None
    try:
        training = make(way)
        for _ in range(NUM_STEPS):
            begin = time.process_time()
            result = _step(training, way)
            first = first or time.process_time() - begin
            seen.append(observe(training.seen, {}, result, None))
    except Exception:
        return Trained(tuple(seen), first, training, traceback.format_exc())
    return Trained(tuple(seen), first, training)


def _step(training: Training, way: Way) -> Any:
    with way.compiler.backward():
        return training.step()


def _seed() -> None:
    random.seed(0)
    numpy.random.seed(0)
    torch.manual_seed(0)


def _differences(eager: Trained, other: Trained) -> list[str]:
    """Of all steps that both made, and that not the same number was made."""
    found = [f"{len(other.seen)} steps, eager: {len(eager.seen)}"] if len(eager.seen) != len(other.seen) else []
    for number, (a, b) in enumerate(zip(eager.seen, other.seen)):
        found += [f"step {number}: {difference}" for difference in differences(a, b)]
    return found


def _graph_breaks() -> dict[str, int]:
    """Dynamo's own count, which is one for each place and compilation, not for each call; the first line of each reason."""
    counted = torch._dynamo.utils.counters["graph_break"]
    return {reason.strip().splitlines()[0]: number for reason, number in counted.items()}


def _places(events: list[Event]) -> dict[str, str]:
    """reason -> detail and line of its first event, as far as it tells where."""
    found: dict[str, str] = {}
    for what in (event.what for event in events):
        if isinstance(what, Fallback | Uncompiled):
            place = " ".join(f"{what.detail} at {what.where}".split())
            found.setdefault(what.kind, without_folders(place)[-300:])
    return found


def without_folders(text: str) -> str:
    """No path and no address of this machine: what is written is kept."""
    return re.sub(r" at 0x\w+", "", re.sub(r"/\S*?/(?=site-packages/|tests/|gradc/|python3)", "", text))


def _ratio(eager: Training, compiled: Training, way: Way) -> float:
    """Of steps made in turns, each first as often, so that what else the machine does falls on both."""
    times: tuple[list[float], list[float]] = ([], [])
    turns = [(eager, EAGERLY, times[0]), (compiled, way, times[1])]
    end = time.process_time() + SECONDS_OF_ROUNDS
    for _ in range(MAX_ROUNDS):
        turns.reverse()
        for training, trained, taken in turns:
            begin = time.process_time()
            _step(training, trained)
            taken.append(time.process_time() - begin)
        if time.process_time() > end:
            break
    return _usual_mean(times[1]) / _usual_mean(times[0])


def _usual_mean(times: list[float]) -> float:
    """Without the slowest and the fastest tenth. No median: where gradients are accumulated, each second step is another."""
    tenth = max(1, len(times) // 10) if len(times) > 2 else 0
    return statistics.fmean(sorted(times)[tenth : len(times) - tenth])


@contextlib.contextmanager
def _in_quiet() -> Iterator[None]:
    """What libraries print goes to stderr, their warnings nowhere."""
    with contextlib.redirect_stdout(sys.stderr), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def main(case: str, way: str, path: str, verdict: str = "") -> None:
    os.environ["HF_HUB_OFFLINE"] = "1"
    torch.set_num_threads(1)
    declare_missing_ops()
    with _in_quiet():
        result = run(importlib.import_module(f"tests.world.cases.{case}").make, WAYS[way], is_timed=not verdict)
    pathlib.Path(path).write_text(json.dumps(dataclasses.asdict(result)))


if __name__ == "__main__":
    main(*sys.argv[1:])
