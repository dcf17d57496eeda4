"""Train for long by one compiled step, whose learning rate and loss scale change: is anything captured again, is memory flat?

    python -m benchmarks.whole_steps [--steps 100000]

The loss scale doubles every few steps until gradients overflow, and the update is left out. Ends with 1 if anything is captured
behind the first step, if an update was not native, or if the first tenth is not like the rest.
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
    """What was done after ``steps``, and what the process holds.

    ``more_graphs``: captured behind the first step. ``skipped``: updates left out for an overflow.
    """

    steps: int
    more_graphs: int
    backwards: int
    fallbacks: int
    native_steps: int
    skipped: int
    held: Held


class Run:
    """A small network; Adam, a cosine schedule, clipped gradients, a loss scale."""

    def __init__(self) -> None:
        self.net = nn.Sequential(nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 16), nn.LayerNorm(16), nn.Linear(16, 1))
        self.optimizer = torch.optim.Adam(self.net.parameters(), lr=0.01)
        self.schedule = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, 1000)
        self.scaler = torch.amp.GradScaler("cpu", growth_interval=3)
        self.run = gradc.compile(self.train)
        self.steps, self.skipped, self.graphs_of_first_step = 0, 0, 0

    def train(self, x: torch.Tensor) -> torch.Tensor:
        self.optimizer.zero_grad()
        loss = 1e4 * self.net(x).square().mean()
        self.scaler.scale(loss).backward()
        self.scaler.unscale_(self.optimizer)
        nn.utils.clip_grad_norm_(self.net.parameters(), 1.0)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.schedule.step()
        return loss.detach()

    def step(self) -> None:
        scale = self.scaler.get_scale()
        self.run(torch.randn(4, 16))
        self.skipped += self.scaler.get_scale() < scale
        self.steps += 1
        if self.steps == 1:
            self.graphs_of_first_step = self.num_graphs()

    def num_graphs(self) -> int:
        return gradc.counters["stats"]["unique_graphs"]

    def look(self) -> Seen:
        return Seen(
            self.steps,
            self.num_graphs() - self.graphs_of_first_step,
            gradc.counters["aot"]["backward_compiles"] + gradc.counters["compiled_autograd"]["captures"],
            gradc.counters["fallbacks"].total(),
            gradc.counters["optim"]["native steps"],
            self.skipped,
            held(),
        )

    def problems(self, before: Seen, after: Seen) -> list[str]:
        """What the later look shows that a run which stays as it is would not."""
        found = []
        if after.more_graphs or after.fallbacks:
            found.append(f"{after.more_graphs} more graphs and {after.fallbacks} fallbacks")
        if after.backwards != before.backwards:
            found.append(f"{after.backwards - before.backwards} backwards compiled again")
        if after.native_steps + after.skipped != after.steps:
            found.append(f"{after.steps - after.skipped - after.native_steps} updates that were not native")
        if after.skipped == before.skipped:
            found.append("no gradient overflowed")
        return found + growth(before.held, after.held)


def main() -> int:
    gradc.config.compare_with_eager = False  # what runs compiled is the question
    return int(bool(watch(Run(), num_steps(__doc__))))


if __name__ == "__main__":
    sys.exit(main())
