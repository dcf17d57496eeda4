"""Functions that reach their tensors through objects alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch._dynamo.convert_frame import ConvertFrame

import gradc
from gradc.torch_private.dynamo_patches.hidden_tensors import reach_tensors
from tests.oracle import check, leaf


class Trainer:
    """No module, and no tensor among its methods' arguments."""

    def __init__(self, x: Tensor) -> None:
        self.state = {"x": x}

    def loss(self) -> Tensor:
        return (self.state["x"] / 3).sin().sum()


def rest(trainer: Trainer) -> Tensor:
    torch._dynamo.graph_break()
    return trainer.loss()


def test_the_rest_of_a_function_has_only_an_object() -> None:
    """Dynamo saw no tensor behind the break: it ran eagerly, and nobody was told."""

    def step(compile: Any, x: Tensor) -> Any:
        return compile(rest)(Trainer(x))

    assert check(step, leaf(3), allow_fallback=True).num_graphs == 1


class Slot:
    value: Any = None


def value_of(slot: Slot) -> Any:
    return None if slot.value is None else slot.value.sin() * slot.value.cos()


def test_a_function_that_had_no_tensors_at_first() -> None:
    """Dynamo left it to Python for good."""

    def step(compile: Any, x: Tensor) -> Any:
        def f(slot: Slot) -> Any:
            torch._dynamo.graph_break()
            return value_of(slot)

        call, slot = compile(f), Slot()
        results = [call(slot)]
        slot.value = x
        return *results, call(slot)

    assert check(step, leaf(3), allow_fallback=True).num_graphs == 1


def test_dynamo_prepares_once_for_a_function_that_has_no_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    """It took 50 us at each of 64 calls, and a trial found the compiled model slower than eager."""
    seen = []
    call, slot = gradc.compile(value_of), Slot()
    prepare = ConvertFrame.__call__

    def noted(self: Any, frame: Any, *args: Any, **kwargs: Any) -> Any:
        seen.append(frame.f_code.co_name)
        return prepare(self, frame, *args, **kwargs)

    monkeypatch.setattr(ConvertFrame, "__call__", noted)
    for _ in range(5):
        call(slot)
    assert seen.count("value_of") == 1
    slot.value = torch.ones(2)
    call(slot)
    assert seen.count("value_of") == 2


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
