"""Functions that reach their tensors through objects alone run eagerly, and are counted."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import relu

import gradc
from gradc.bits import same_bits
from gradc.torch_private.dynamo_patches.hidden_tensors import computes, reach_tensors

REASON = "tensors in objects alone"


@pytest.fixture(autouse=True)
def nothing_compiled() -> Iterator[None]:
    gradc.reset()
    yield
    gradc.reset()


class Trainer:
    """No module, and no tensor among its methods' arguments."""

    def __init__(self, x: Tensor) -> None:
        self.state = {"x": x}

    def loss(self) -> Tensor:
        return (self.state["x"] / 3).sin().sum()


def rest(trainer: Trainer) -> Tensor:
    print(end="")  # ends the graph; a function that names ``torch`` is compiled anyway
    return trainer.loss()


def test_the_rest_of_a_function_has_only_an_object() -> None:
    """Dynamo saw no tensor behind the break: it ran eagerly, and nobody was told."""
    run, x = gradc.compile(rest), torch.randn(3)
    for number in range(1, 4):
        assert same_bits(run(Trainer(x)), Trainer(x).loss())
        assert gradc.counters["uncompiled"][REASON] == number


class Slot:
    value: Any = None


def value_of(slot: Slot) -> Any:
    return None if slot.value is None else slot.value.sin() * slot.value.cos()


def behind_a_break(slot: Slot) -> Any:
    print(end="")
    return value_of(slot)


def test_a_function_that_had_no_tensors_at_first() -> None:
    """Dynamo leaves it to Python for good: calls that reach a tensor are counted, others are not."""
    run, slot = gradc.compile(behind_a_break), Slot()
    assert run(slot) is None and not gradc.counters["uncompiled"][REASON]
    slot.value = torch.randn(3)
    assert same_bits(run(slot), value_of(slot)) and gradc.counters["uncompiled"][REASON] == 1


class Loud:
    """Whose attributes and items run code."""

    asked = 0

    def __init__(self, value: Any) -> None:
        self.value = value

    def __getattribute__(self, name: str) -> Any:
        Loud.asked += 1
        return object.__getattribute__(self, name)


class LoudDict(dict[str, Any]):
    def values(self) -> Any:
        raise AssertionError("of the user")


@pytest.mark.parametrize("value, expected", [(1, False), (torch.ones(1), True), (Trainer(torch.ones(1)), True)])
def test_looking_runs_no_code_of_the_users(value: Any, expected: bool) -> None:
    loud = Loud(LoudDict(key=[value, value]))
    Loud.asked = 0
    assert reach_tensors([loud]) is expected
    assert Loud.asked == 0


def adds(slot: Slot) -> Any:
    return slot.value + 1


def calls_torch(slot: Slot) -> Any:
    return relu(slot.value)


def hands_on(slot: Slot) -> Any:
    return value_of(slot) if slot.value else None


CASES = [(adds, True), (calls_torch, True), (value_of, True), (hands_on, False), (statistics.mean, False)]


@pytest.mark.parametrize("function, expected", CASES)
def test_what_computes(function: Any, expected: bool) -> None:
    assert computes(function.__code__, function.__globals__) is expected
