"""Functions of ``math`` of an integer that changes: Python's, between graphs that are compiled once."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

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
