"""Integers that change from call to call: those of modules as inputs of the graph, functions of ``math`` of them in Python."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import gradc
from tests.oracle import check, leaf

NUM_STEPS = 12  # more than Dynamo compiles one function for
FUNCTIONS: dict[str, Callable[[int], float]] = {
    "bias correction": lambda step: 1.0 - math.pow(0.9, step),
    "log": lambda step: math.log(step + 1) / 3,
    "exp": lambda step: math.exp(-step / 10),
    "sqrt": lambda step: math.sqrt(step) * 0.1,
    "cosine": lambda step: 0.5 * (1 + math.cos(math.pi * step / NUM_STEPS)),
    "floor": lambda step: 0.1 * math.floor(step * 0.3),
    "factorial": lambda step: 1 / math.factorial(step),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_schedule_by_the_number_of_the_step(name: str) -> None:
    function = FUNCTIONS[name]

    def step(compile: Any, x: Tensor) -> Any:
        call, found = compile(lambda x, number: (x.sin() * function(number)).cos()), []
        for number in range(1, NUM_STEPS):
            out = call(x, number)
            found.append((out, torch.autograd.grad(out.sum(), x)))
        return found

    assert check(step, leaf(3)).num_graphs <= 6


def test_the_number_is_state_that_the_function_changes() -> None:
    def step(compile: Any, x: Tensor) -> Any:
        state = {"step": 0}

        def debiased(x: Tensor) -> Tensor:
            state["step"] += 1
            return x.sin() / (1.0 - math.pow(0.9, state["step"]))

        call = compile(debiased)
        return [call(x) for _ in range(NUM_STEPS)], state["step"]

    assert check(step, leaf(3)).num_graphs <= 6


def test_under_fullgraph_the_integer_is_a_constant() -> None:
    def step(compile: Any, x: Tensor) -> Any:
        call = compile(lambda x, number: x * math.log(number), fullgraph=True)
        return [call(x, number) for number in range(1, 5)]

    check(step, leaf(3))


def test_a_number_that_is_calculated_of_a_symbol_is_returned() -> None:
    """``math.floor(n * 0.3)`` of a symbol reads torch.sym_float, which was not there."""

    def step(compile: Any, x: Tensor) -> Any:
        call = compile(lambda x, number: (x * 2, math.floor(number * 0.3), math.ceil(number / 7)), dynamic=True)
        return [call(x, number) for number in (2, 5, 11)]

    check(step, leaf(3))


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


def test_a_module_counts_its_calls() -> None:
    assert check(steps, leaf(3)).num_graphs <= 3


def test_a_module_that_counts_stays_compiled() -> None:
    gradc.counters.clear()
    module = gradc.compile(Warming(), fullgraph=True)
    for _ in range(14):
        module(torch.ones(3))
    assert not gradc.counters["uncompiled"] and not gradc.counters["fallbacks"]


def test_an_integer_of_a_module_set_from_outside() -> None:
    def step(compile: Any, x: Tensor) -> Any:
        module = Warming()
        call, found = compile(module), []
        for number in (5, 50, 500, 0, 1, -3, 7):
            module.step = number
            module.every = number + 4
            found.append(call(x))
        return found

    check(step, leaf(3), allow_fallback=True)


def test_integers_of_other_modules_stay_constants() -> None:
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


@pytest.mark.parametrize("numbers", [(2**70, 2**70 + 3, 2**71), (5, 6, 7, 2**70, 8, -(2**63), -(2**63) - 1)])
def test_integers_beyond_64_bits(numbers: tuple[int, ...]) -> None:
    """Dynamo made symbols of them, which have 64: the call raised."""

    def step(compile: Any, x: Tensor) -> Any:
        of_an_argument = compile(lambda x, number: x * float(number % 7))
        of_a_list = compile(lambda x, given: x * (given[0] // 2**60))
        return [(of_an_argument(x, number), of_a_list(x, [number])) for number in numbers]

    check(step, leaf(3), allow_fallback=True)
