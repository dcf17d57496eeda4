"""Lists that grow from call to call: the step around them is compiled once, and Python appends."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import gradc
from tests.oracle import check, constant

Tensor = torch.Tensor
NUM_CALLS = 12


class Training:
    def __init__(self) -> None:
        torch.manual_seed(0)
        self.net = nn.Linear(4, 4)
        self.optimizer = torch.optim.Adam(self.net.parameters())
        self.losses: list[Any] = []
        self.history: dict[str, list[float]] = {"loss": [], "size": []}

    def loss_of(self, x: Tensor) -> Tensor:
        return self.net(x).square().mean()

    def update(self, loss: Tensor) -> None:
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()


def numbers_at_the_end(t: Training, x: Tensor) -> None:
    loss = t.loss_of(x)
    t.update(loss)
    t.losses.append(loss.item())


def numbers_in_the_middle(t: Training, x: Tensor) -> None:
    hidden = t.net(x)
    t.losses.append(hidden.abs().mean().item())
    t.update(hidden.square().mean())


def tensors(t: Training, x: Tensor) -> None:
    loss = t.loss_of(x)
    t.update(loss)
    t.losses.append(loss.detach())


def in_a_dictionary(t: Training, x: Tensor) -> Tensor:
    loss = t.loss_of(x)
    t.update(loss)
    t.history["loss"].append(loss.item())
    t.history["size"] += [x.shape[0]]
    return loss.detach()


def that_is_read(t: Training, x: Tensor) -> Tensor:
    loss = t.loss_of(x)
    t.losses.append(len(t.losses))
    t.update(loss * len(t.losses) + sum(t.losses))
    return loss.detach() * t.losses[-1]


def that_is_emptied(t: Training, x: Tensor) -> None:
    loss = t.loss_of(x)
    t.update(loss)
    t.losses.append(loss.item())
    if len(t.losses) == 5:
        t.losses.clear()


def by_a_name_of_its_own(t: Training, x: Tensor) -> None:
    append = t.losses.append
    loss = t.loss_of(x)
    append(loss.item())
    t.update(loss)
    append(1.0)


STEPS = [
    numbers_at_the_end,
    numbers_in_the_middle,
    tensors,
    in_a_dictionary,
    that_is_read,
    that_is_emptied,
    by_a_name_of_its_own,
]


@pytest.mark.parametrize("step", STEPS)
def test_as_in_eager(step: Callable[[Training, Tensor], Any]) -> None:
    def run(compile: Any, x: Tensor) -> Any:
        t = Training()
        compiled = compile(lambda x: step(t, x))
        return [compiled(x + n) for n in range(NUM_CALLS)], t.losses, t.history

    check(run, constant(3, 4), allow_fallback=True)


@pytest.mark.parametrize("step", [numbers_at_the_end, numbers_in_the_middle, tensors, in_a_dictionary])
def test_the_step_stays_compiled(step: Callable[[Training, Tensor], Any]) -> None:
    t = Training()
    torch._dynamo.reset()
    gradc.counters.clear()
    run = gradc.compile(lambda x: step(t, x))
    for _ in range(NUM_CALLS):
        run(torch.ones(3, 4))
    assert gradc.counters["uncompiled"]["recompile limit"] == 0 and gradc.counters["stats"]["unique_graphs"] <= 6


def test_a_list_that_is_filled_once_is_compiled() -> None:
    torch._dynamo.reset()
    gradc.counters.clear()
    cache: list[Tensor] = []

    def function(x: Tensor) -> Tensor:
        if not cache:
            cache.append(torch.ones(3))
        return x.sin() * cache[0]

    run = gradc.compile(function)
    for _ in range(5):
        run(torch.ones(3))
    assert not gradc.counters["uncompiled"] and gradc.counters["stats"]["unique_graphs"] == 2
