"""An int of a module that changes from call to call: an input of the graph once it has."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

import gradc
from tests.oracle import check, leaf


class Warming(nn.Module):
    """Counts its calls, and calculates with the count: as a number, in floats, as a size, and in what it returns."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))
        self.step, self.every = 0, 7

    def forward(self, x: Tensor) -> tuple[Tensor, float]:
        self.step += 1
        beta = min(1.0, self.step / self.every * 0.3)
        y = x * self.weight * beta + x.exp() * (1 - 0.9**self.step) - x * self.step
        return y.sum() + x.new_ones(self.step + 1).sum(), beta


def steps(compile: Any, x: Tensor) -> Any:
    module = Warming()
    call, found = compile(module), []
    for _ in range(14):
        loss, beta = call(x)
        loss.backward()
        found.append((loss, beta, module.step, module.weight.grad.clone()))
    return found


def test_a_count_of_calls():
    assert check(steps, leaf(3)).num_graphs <= 3


def test_it_stays_compiled():
    gradc.counters.clear()
    module = gradc.compile(Warming(), fullgraph=True)
    for _ in range(14):
        module(torch.ones(3))
    assert not gradc.counters["uncompiled"] and not gradc.counters["fallbacks"]


def test_set_from_outside():
    def step(compile: Any, x: Tensor) -> Any:
        module = Warming()
        call, found = compile(module), []
        for number in (5, 50, 500, 0, 1, -3, 7):
            module.step = number
            module.every = number + 4
            found.append(call(x))
        return found

    check(step, leaf(3), allow_fallback=True)


def test_ints_of_other_modules_stay_constants():
    """Two modules of one class, each with an int of its own, are compiled with these as constants."""

    class Power(nn.Module):
        def __init__(self, power: int) -> None:
            super().__init__()
            self.power = power

        def forward(self, x: Tensor) -> Tensor:
            return x**self.power

    def step(compile: Any, x: Tensor) -> Any:
        calls = [compile(Power(power)) for power in (2, 3)]
        return [torch.autograd.grad(call(x).sum(), x) for call in calls for _ in range(3)]

    assert check(step, leaf(3)).num_graphs == 2
