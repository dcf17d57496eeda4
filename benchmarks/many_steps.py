"""Train a small compiled network for long: is memory flat, is anything compiled again?

    python -m benchmarks.many_steps [--steps 100000]

Ends with 1 if the first tenth is not like the rest.
"""

from __future__ import annotations

import dataclasses
import sys

import torch
from torch import nn

import gradc
from benchmarks.endurance import Held, growth, held, num_steps, watch


@dataclasses.dataclass(frozen=True)
class Seen:
    """What was done after ``steps``, and what the process holds."""

    steps: int
    graphs: int
    backwards: int
    fallbacks: int
    held: Held


class Run:
    """A small network, trained on new batches."""

    def __init__(self) -> None:
        self.net = nn.Sequential(nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 16), nn.LayerNorm(16), nn.Linear(16, 1))
        self.loss = gradc.compile(lambda x: self.net(x).square().mean())
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.01)
        self.steps = 0

    def step(self) -> None:
        self.optimizer.zero_grad()
        self.loss(torch.randn(4, 16)).backward()
        self.optimizer.step()
        self.steps += 1

    def look(self) -> Seen:
        return Seen(
            self.steps,
            gradc.counters["stats"]["unique_graphs"],
            gradc.counters["aot"]["backward_compiles"],
            gradc.counters["fallbacks"].total(),
            held(),
        )

    def problems(self, before: Seen, after: Seen) -> list[str]:
        """What the later look shows that a run which stays as it is would not."""
        found = []
        if after.graphs != 1 or after.fallbacks:
            found.append(f"{after.graphs} graphs and {after.fallbacks} fallbacks")
        if after.backwards != before.backwards:
            found.append(f"{after.backwards - before.backwards} backwards compiled again")
        return found + growth(before.held, after.held)


def main() -> int:
    return int(bool(watch(Run(), num_steps(__doc__))))


if __name__ == "__main__":
    sys.exit(main())
