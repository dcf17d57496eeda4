"""Train with hooks that are new objects at every step, backward captured: is memory flat, is anything captured again?

    python -m benchmarks.hooks_every_step [--steps 100000]

Each step hangs a hook on a parameter, on an activation and on a node of the graph. Ends with 1 if the first tenth is
not like the rest.
"""

from __future__ import annotations

import dataclasses
import sys

import torch
from torch import nn

import gradc
from benchmarks.endurance import Held, growth, held, num_steps, watch
from gradc import compiled_autograd


@dataclasses.dataclass(frozen=True)
class Seen:
    """What was done after ``steps``, and what the process holds. ``ran`` counts the hooks' calls."""

    steps: int
    captures: int
    hits: int
    finished_live: int
    ran: int
    held: Held


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
        counts = gradc.counters["compiled_autograd"]
        return Seen(self.steps, counts["captures"], counts["hits"], counts["finished live"], self.ran, held())

    def problems(self, before: Seen, after: Seen) -> list[str]:
        """What the later look shows that a run which stays as it is would not."""
        steps = after.steps - before.steps
        found = []
        if after.captures != before.captures:
            found.append(f"{after.captures - before.captures} captures")
        if after.hits - before.hits != steps or after.finished_live:
            found.append(f"{after.hits - before.hits} hits and {after.finished_live} finished live in {steps} steps")
        if after.ran - before.ran != 3 * steps:
            found.append(f"{after.ran - before.ran} calls of hooks in {steps} steps")
        return found + growth(before.held, after.held)


def main() -> int:
    return int(bool(watch(Run(), num_steps(__doc__))))


if __name__ == "__main__":
    sys.exit(main())
