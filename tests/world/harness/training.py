"""What a case is: a training as its library's users write it, and the place where the compiler comes in.

    make: Way -> Training           each file of tests/world/cases has one, and LIBRARIES, the distributions that it uses

``way.model`` stands where a user compiles the model, ``way.step`` where a user compiles the whole step: each returns its
argument where this way does not compile it. ``loop`` is the usual training loop with both in their places.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import torch

from tests.compilers import DYNAMO, EAGER, GRADC, Compiler, find

DOCUMENTED_WAYS = ("model", "captured", "step")


@dataclasses.dataclass(frozen=True)
class Way:
    """One way to train: with which compiler, and whether it gets the model or the whole step."""

    name: str
    compiler: Compiler
    compiles_step: bool = False

    def model(self, model: Any) -> Any:
        """The model, or what a user compiles in its place; compiled where this way compiles models."""
        return model if self.compiles_step else self.compiler(model)

    def step(self, step: Callable[..., Any]) -> Callable[..., Any]:
        """The function of a whole step, forward, backward and optimizer; compiled where this way compiles steps."""
        return self.compiler(step) if self.compiles_step else step


EAGERLY = Way("eager", EAGER)
WAYS = {
    way.name: way
    for way in (
        Way("model", GRADC),
        Way("captured", find("gradc_captured")),
        Way("step", GRADC, compiles_step=True),
        Way("dynamo", DYNAMO),
    )
}


@dataclasses.dataclass(frozen=True)
class Training:
    """A training under way.

    Attributes:
        step: () -> losses, and whatever else is compared. Runs one more step, on the next batch.
        seen: the models, optimizers and tensors to compare after each step.
    """

    step: Callable[[], Any]
    seen: tuple[Any, ...]


def loop(
    way: Way,
    model: torch.nn.Module,
    loss: Callable[..., torch.Tensor],
    batches: Sequence[tuple[Any, ...]],
    optimizer: torch.optim.Optimizer | None = None,
    context: Callable[[], Any] | None = None,
) -> Training:
    """The usual loop: the gradients of the last step stay where they are, to be compared.

    Arguments:
        loss: (model, *batch) -> a number to be minimised.
        batches: gone through again and again.
        optimizer: AdamW, if none is given.
        context: () -> what the forward runs in: autocast, say.
    """
    optimizer = optimizer or torch.optim.AdamW(model.parameters(), lr=1e-3)
    compiled = way.model(model)

    def step(*batch: Any) -> torch.Tensor:
        optimizer.zero_grad()
        if context is None:
            value = loss(compiled, *batch)
        else:
            with context():
                value = loss(compiled, *batch)
        value.backward()
        optimizer.step()
        return value.detach()

    step, feed = way.step(step), itertools.cycle(batches)
    return Training(lambda: step(*next(feed)), (model, optimizer))
