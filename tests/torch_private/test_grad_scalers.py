"""torch.amp.GradScaler in compiled steps: one that is off costs no graph, one that is on does as in eager."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import gradc
from tests.oracle import Compiler, check

OPTIONS = {"compare_with_eager": False}


class Training:
    def __init__(self, scaler: torch.amp.GradScaler) -> None:
        torch.manual_seed(0)
        self.net, self.scaler = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)), scaler
        self.optimizer = torch.optim.AdamW(self.net.parameters(), lr=0.1)

    def step(self, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16, enabled=self.scaler.is_enabled()):
            loss = self.net(x).square().mean()
        self.optimizer.zero_grad()
        self.scaler.scale(loss).backward()
        self.scaler.unscale_(self.optimizer)
        nn.utils.clip_grad_norm_(self.net.parameters(), 0.5)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        return loss.detach()


def without_clipping(training: Training, x: torch.Tensor) -> torch.Tensor:
    training.optimizer.zero_grad()
    loss = training.net(x).square().mean()
    training.scaler.scale(loss).backward()
    training.scaler.step(training.optimizer)
    training.scaler.update()
    return loss.detach()


def of_lists(training: Training, x: torch.Tensor) -> torch.Tensor:
    out = training.net(x).square()
    losses = training.scaler.scale([out.mean(), out.sum()])
    torch.autograd.backward(losses)
    training.scaler.step(training.optimizer)
    training.scaler.update(512.0 if training.scaler.is_enabled() else None)
    training.optimizer.zero_grad()
    return out.detach()


@pytest.mark.parametrize("is_on", [False, True])
@pytest.mark.parametrize("step", [Training.step, without_clipping, of_lists])
def test_as_in_eager(step: Any, is_on: bool) -> None:
    """With an overflow in the fourth step: it is left out, and the scale halves."""

    def run(compile: Compiler) -> Any:
        training, seen = Training(torch.amp.GradScaler("cpu", 1024.0, growth_interval=2, enabled=is_on)), []
        compiled = compile(step)
        for number in range(7):
            x = torch.full((3, 4), 1.0 + number)
            x[0, 0] = float("inf") if number == 3 else 1.0
            seen += [compiled(training, x), training.scaler.get_scale(), training.scaler.state_dict()]
            seen += [parameter.detach().clone() for parameter in training.net.parameters()]
        return seen

    check(run, allow_fallback=True)


def test_switched_on_behind_a_call() -> None:
    def run(compile: Compiler) -> Any:
        training = Training(torch.amp.GradScaler("cpu", enabled=False))
        step, seen = compile(Training.step), []
        for number in range(6):
            if number == 3:
                training.scaler = torch.amp.GradScaler("cpu", 256.0)
            seen += [step(training, torch.full((3, 4), 1.0 + number)), training.scaler.get_scale()]
        return seen, [parameter.detach() for parameter in training.net.parameters()]

    check(run, allow_fallback=True)


def test_one_graph_and_nothing_is_lost() -> None:
    gradc.reset()
    training = Training(torch.amp.GradScaler("cpu", enabled=False))
    step = gradc.compile(training.step, options=OPTIONS)
    for _ in range(3):
        step(torch.ones(3, 4))
    assert not gradc.counters["uncompiled"] and not gradc.counters["fallbacks"]
    assert gradc.counters["stats"]["unique_graphs"] == 2  # forward and backward; clipping


def test_the_loss_of_one_that_is_on_is_scaled_in_its_graph() -> None:
    gradc.reset()
    training = Training(torch.amp.GradScaler("cpu"))
    step = gradc.compile(training.step, options=OPTIONS)
    for _ in range(4):
        step(torch.ones(3, 4))
    assert dict(gradc.counters["uncompiled"]) == {"gradc: gradient scaler": 4}
