"""What scripts cost that gain little by being compiled: 300 steps from the first call on, beside eager's, and settled steps.

    python -m benchmarks.never_slower [NAME ...] [--steps 300] [--page docs/scripts.md]

Each script, and each way, is a process of its own; times are what it computes. The bars: 300 steps take at most 1.1 of the
time that they take in eager, and 5 s; a settled step at most 1.02 of an eager one, which takes turns with it in the same
process. The script ``tensordicts`` needs the library tensordict, and is left out where that is not installed.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import pathlib
import random
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import torch

import gradc
from benchmarks.everyday_scripts import EVERYDAY
from benchmarks.scripts import SCRIPTS, Script
from gradc.bits import same_bits
from gradc.policy.profitability import verdicts

ALL = SCRIPTS | EVERYDAY
WAYS = ("model", "step")
_ROUNDS, _SECONDS = 30, 6.0  # of the comparison of settled steps
_MOST_OF_TOTAL, _MORE, _MOST_OF_SETTLED = 1.1, 5.0, 1.02
_GAIN, _SLOWER = 0.9, 1.03  # ratios of settled steps that the page counts from


@dataclasses.dataclass(frozen=True)
class Cost:
    """Of one script in one way.

    Attributes:
        total: seconds of all steps, compiled.
        eager: the same in a process where nothing is compiled.
        settled: the median of a step's time to that of eager's beside it.
        worst: the most that the compiled ones were behind eager's at any time, beyond 1.1 of these, in seconds.
        verdicts: after how many steps something was chosen, and what.
        is_bitwise: whether what was trained is eager's.
    """

    total: float
    eager: float
    settled: float
    worst: float
    verdicts: str
    is_bitwise: bool

    def __str__(self) -> str:
        seconds = f"{self.eager:.2f} | {self.total:.2f} | {self.worst:.2f} | {self.settled:.3f}"
        return f"{seconds} | {self.verdicts} | {'yes' if self.is_bitwise else 'NO'}"

    @property
    def is_over(self) -> bool:
        return self.total > _MOST_OF_TOTAL * self.eager + _MORE or self.settled > _MOST_OF_SETTLED or not self.is_bitwise


def itself(target: Any) -> Any:
    return target


def made(name: str, way: str) -> Script:
    """The script, as it begins."""
    torch.manual_seed(0)
    random.seed(0)
    return ALL[name](gradc.compile if way == "model" else itself, gradc.compile if way == "step" else itself)


class Generators:
    """The state of random numbers of one script: two take turns in one process."""

    def __init__(self) -> None:
        self.keep()

    def keep(self) -> None:
        self._state = torch.get_rng_state(), random.getstate()

    def put_back(self) -> None:
        torch.set_rng_state(self._state[0])
        random.setstate(self._state[1])


def timed(step: Callable[[], None]) -> float:
    begun = time.process_time()
    step()
    return time.process_time() - begun


def run(name: str, way: str, num_steps: int) -> dict[str, Any]:
    """In this process: what each step took, what was chosen when, and settled steps beside eager's."""
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore")
    script = made(name, way)
    found: list[tuple[int, str]] = []
    seconds: list[float] = []
    for number in range(num_steps):
        seconds.append(timed(script.step))
        found += [(number, verdict.chosen.value) for verdict in verdicts()[len(found) :]]
    counted = {group: dict(counter) for group, counter in gradc.counters.items()}
    tensors = [tensor.detach().tolist() for tensor in script.tensors]
    result = {"seconds": seconds, "verdicts": found, "tensors": tensors, "counters": counted}
    return result if way == "eager" else {**result, "settled": settled(script, name)}


def settled(script: Script, name: str) -> float:
    """``script``, which has been trained, beside a new one that nobody compiled; each has random numbers of its own."""
    ours = Generators()
    eager, other = made(name, "eager"), Generators()
    ratios: list[float] = []
    begun = time.process_time()
    while len(ratios) < _ROUNDS and (len(ratios) < 8 or time.process_time() - begun < _SECONDS):
        ratios.append(_block(script, ours) / _block(eager, other))
        ours._state, other._state = other._state, ours._state  # either draws what the other drew, so lengths are alike
    return statistics.median(ratios)


def _block(script: Script, generators: Generators) -> float:
    generators.put_back()
    begun, number = time.process_time(), 0
    while number < 20:
        script.step()
        number += 1
    seconds = time.process_time() - begun
    generators.keep()
    return seconds


def in_a_process(name: str, way: str, num_steps: int) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.never_slower", name, "--way", way, "--steps", str(num_steps)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr)
    return json.loads(done.stdout.splitlines()[-1])


def cost(compiled: dict[str, Any], eager: dict[str, Any]) -> Cost:
    behind, worst = 0.0, 0.0
    for a, b in zip(compiled["seconds"], eager["seconds"]):
        behind += a - _MOST_OF_TOTAL * b
        worst = max(worst, behind)
    pairs = zip(compiled["tensors"], eager["tensors"])
    is_bitwise = all(same_bits(torch.tensor(a), torch.tensor(b)) for a, b in pairs)
    chosen = ", ".join(f"{what} {number}" for number, what in compiled["verdicts"]) or "none"
    return Cost(sum(compiled["seconds"]), sum(eager["seconds"]), compiled["settled"], worst, chosen, is_bitwise)


def page(costs: dict[str, dict[str, Cost]], num_steps: int) -> str:
    """The page of all costs: name -> way -> Cost."""
    best = {name: min(cost.settled for cost in ways.values()) for name, ways in costs.items()}
    gain = sum(ratio <= _GAIN for ratio in best.values())
    every = [cost for ways in costs.values() for cost in ways.values()]
    rows = [
        f"| {name.replace('_', ' ')} | {_cells(ways)} |" for name, ways in sorted(costs.items(), key=lambda row: best[row[0]])
    ]
    return _PAGE.format(
        torch=torch.__version__.split("+")[0], python=sys.version.split()[0], num_steps=num_steps, rows="\n".join(rows),
        gain=gain, least=_GAIN, most=_SLOWER, number=len(best), median=statistics.median(best.values()),
        slower=sum(cost.settled > _SLOWER for cost in every), runs=len(every),
        bitwise=sum(cost.is_bitwise for cost in every), worst=max(cost.worst for cost in every),
    )  # fmt: skip


def _cells(ways: dict[str, Cost]) -> str:
    model, step = (ways[way] for way in WAYS)
    ratios = (
        f"{cost.settled:.2f}{' (eager)' * cost.verdicts.rpartition(', ')[2].startswith('eager')}" for cost in (model, step)
    )
    return " | ".join((*ratios, *(f"{seconds:.1f}" for seconds in (model.eager, model.total, step.total))))


_PAGE = """# Scripts

Written by `make scripts` with torch {torch}, Python {python}, one thread: small training scripts, re-made after
public ones. Half are of kinds in which compiling gains little (episodes, solvers, trees: `benchmarks/scripts.py`), half
are what people train every day (`benchmarks/everyday_scripts.py`). Two ways: the model compiled, and the step.

**{gain} of {number} take at most {least} of eager's time in the better way; the median is {median:.2f}.**
{slower} of {runs} settled runs are slower than {most} of eager. Bits: {bitwise} of {runs} are eager's.
The most that one was ever behind 1.1 of eager's time, compiling included: {worst:.1f} s.

Ratios of settled steps to eager's, which take turns with them; `(eager)`: the trial chose eager. Seconds of {num_steps} steps,
from the first call on. All times are what the process computes.

| script | ratio: model | ratio: step | {num_steps} steps: eager | model | step |
| --- | ---: | ---: | ---: | ---: | ---: |
{rows}
"""


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*", default=[])
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--way", help="run it here")
    parser.add_argument("--page", type=pathlib.Path, help="to be written, besides")
    asked = parser.parse_args()
    if asked.way:
        print(json.dumps(run(asked.names[0], asked.way, asked.steps)))
        return 0
    costs: dict[str, dict[str, Cost]] = {}
    print("script, way | eager s | total s | behind s, at most | settled | chosen after steps | bitwise", flush=True)
    for name in asked.names or [name for name in ALL if name != "tensordicts" or find_spec("tensordict")]:
        eager = in_a_process(name, "eager", asked.steps)
        for way in WAYS:
            compiled = in_a_process(name, way, asked.steps)
            found = cost(compiled, eager)
            costs.setdefault(name, {})[way] = found
            print(f"{name}, {way} | {found}{' <-- over a bar' * found.is_over}", flush=True)
            print(f"    {compiled['counters']}", file=sys.stderr)
    if asked.page:
        asked.page.write_text(page(costs, asked.steps))
    return int(any(cost.is_over for ways in costs.values() for cost in ways.values()))


if __name__ == "__main__":
    sys.exit(main())
