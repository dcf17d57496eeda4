"""Train with hooks that are new objects at every step, backward captured: is memory flat, is anything captured again?

    python -m benchmarks.hooks_every_step [--steps 100000]

Each step hangs a hook on a parameter, on an activation and on a node of the graph. Ends with 1 if the first tenth is
not like the rest.
"""

from __future__ import annotations

import argparse
import dataclasses
import gc
import pathlib
import resource
import sys
import time

import torch
from torch import nn

import gradc
from gradc.engine import compiled_autograd

MAX_GROWTH_MIB = 2.0
MAX_NEW_OBJECTS = 200


@dataclasses.dataclass(frozen=True)
class Seen:
    """What the process holds after ``steps``. ``ran`` counts the hooks' calls."""

    steps: int
    captures: int
    hits: int
    finished_live: int
    ran: int
    resident_mib: float
    num_objects: int


class Run:
    """A small network, trained with fresh hooks."""

    def __init__(self) -> None:
        self.net = nn.Sequential(nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 1))
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.01)
        self.steps, self.ran = 0, 0

    def step(self) -> None:
        first, rest = self.net[:2], self.net[2:]
        weight = next(self.net.parameters())
        middle = first(torch.randn(4, 16))
        loss = rest(middle).square().mean()
        assert loss.grad_fn is not None
        handles = [
            weight.register_hook(lambda grad: self.seen(grad * 0.5)),
            middle.register_hook(lambda grad: self.seen(grad.clamp(-1, 1))),
            loss.grad_fn.register_hook(lambda inputs, outputs: self.seen(None)),
        ]
        self.optimizer.zero_grad()
        with compiled_autograd.enable():
            loss.backward()
        self.optimizer.step()
        for handle in handles:
            handle.remove()
        self.steps += 1

    def seen(self, result: torch.Tensor | None) -> torch.Tensor | None:
        self.ran += 1
        return result

    def look(self) -> Seen:
        gc.collect()
        counts = gradc.counters["compiled_autograd"]
        held = len(gc.get_objects())
        return Seen(
            self.steps, counts["captures"], counts["hits"], counts["finished live"], self.ran, resident_mib(), held
        )


def resident_mib() -> float:
    pages = int(pathlib.Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 2**20


def problems(before: Seen, after: Seen) -> list[str]:
    """What the later look shows that a run which stays as it is would not."""
    steps = after.steps - before.steps
    found = []
    if after.captures != before.captures:
        found.append(f"{after.captures - before.captures} captures")
    if after.hits - before.hits != steps or after.finished_live:
        found.append(f"{after.hits - before.hits} hits and {after.finished_live} finished live in {steps} steps")
    if after.ran - before.ran != 3 * steps:
        found.append(f"{after.ran - before.ran} calls of hooks in {steps} steps")
    if after.resident_mib - before.resident_mib > MAX_GROWTH_MIB:
        found.append(f"{after.resident_mib - before.resident_mib:.1f} MiB more")
    if after.num_objects - before.num_objects > MAX_NEW_OBJECTS:
        found.append(f"{after.num_objects - before.num_objects} objects more")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--steps", type=int, default=100_000)
    steps = parser.parse_args().steps
    torch.set_num_threads(1)
    run, looks, start = Run(), list[Seen](), time.perf_counter()
    for number in range(1, steps + 1):
        run.step()
        if number % max(steps // 10, 1) == 0:
            looks.append(run.look())
            print(looks[-1], flush=True)
    print(f"{(time.perf_counter() - start) / steps * 1e6:.0f} us a step")
    found = problems(looks[0], looks[-1])
    print(", ".join(found) or "flat: nothing captured again, nothing kept")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
