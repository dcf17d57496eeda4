"""Many steps of one run: is what the process holds at the end what it held after a tenth of them?

    watch: (run, number of steps) -> problems        growth: (earlier look, later look) -> problems
"""

from __future__ import annotations

import argparse
import dataclasses
import gc
import pathlib
import resource
import time
from collections.abc import Sequence
from typing import Any, Protocol

import torch

MAX_GROWTH_MIB = 2.0
MAX_NEW_OBJECTS = 200


@dataclasses.dataclass(frozen=True)
class Held:
    """What the process holds: memory, and objects that the garbage collector knows."""

    resident_mib: float
    num_objects: int


def held() -> Held:
    gc.collect()
    num_objects = len(gc.get_objects())
    pages = int(pathlib.Path("/proc/self/statm").read_text().split()[1])
    return Held(pages * resource.getpagesize() / 2**20, num_objects)


def growth(before: Held, after: Held) -> list[str]:
    found = []
    if after.resident_mib - before.resident_mib > MAX_GROWTH_MIB:
        found.append(f"{after.resident_mib - before.resident_mib:.1f} MiB more")
    if after.num_objects - before.num_objects > MAX_NEW_OBJECTS:
        found.append(f"{after.num_objects - before.num_objects} objects more")
    return found


class Run(Protocol):
    """``look`` says what is seen now; ``problems`` compares two looks."""

    def step(self) -> None: ...
    def look(self) -> Any: ...
    def problems(self, before: Any, after: Any) -> Sequence[str]: ...


def watch(run: Run, steps: int) -> list[str]:
    """Run ``steps`` steps, look at each tenth, and compare the last look with the first."""
    torch.set_num_threads(1)
    looks: list[Any] = []
    start = time.perf_counter()
    for number in range(1, steps + 1):
        run.step()
        if number % max(steps // 10, 1) == 0:
            looks.append(run.look())
            print(looks[-1], flush=True)
    print(f"{(time.perf_counter() - start) / steps * 1e6:.0f} us a step")
    found = list(run.problems(looks[0], looks[-1]))
    print(", ".join(found) or "flat: nothing captured again, nothing kept")
    return found


def num_steps(description: str | None) -> int:
    """``--steps`` of the command line."""
    parser = argparse.ArgumentParser(description=(description or "").split("\n")[0])
    parser.add_argument("--steps", type=int, default=100_000)
    return parser.parse_args().steps
