"""Functions that reach their tensors through objects alone run eagerly, and are counted."""

from __future__ import annotations

import statistics
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._dynamo.convert_frame import CatchErrorsWrapper
from torch.nn.functional import relu

import gradc
from gradc.bits import same_bits
from gradc.torch_private.dynamo_patches.skipped_frame_counter import MOST_CALLS
from gradc.torch_private.dynamo_patches.tensor_reachability import computes, reach_tensors

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


def all_kinds(trainer: Trainer, *more: Any, factor: float = 2.0, **named: Any) -> Tensor:
    try:
        return trainer.loss() * factor * len(more) * len(named)
    finally:
        more = ()


def of_a_closure(trainer: Trainer) -> Callable[[], Any]:
    def inner() -> Any:
        return trainer.loss() + (later if trainer is None else 1)

    if trainer is None:
        later = 1
    return inner


def captured_argument(trainer: Trainer) -> Any:
    def grown() -> Any:
        return trainer.loss() + 1

    return grown() * 2


class Kinds(Trainer):
    def loss(self) -> Tensor:
        return super().loss() * 3


FORMS: list[Callable[[Trainer], Any]] = [
    lambda trainer: all_kinds(trainer, 1, 2, factor=3.0, other=4),
    lambda trainer: of_a_closure(trainer)(),
    captured_argument,
    lambda trainer: Kinds(trainer.state["x"]).loss(),
]


@pytest.mark.parametrize("form", FORMS)
def test_functions_of_all_forms_count_each_call(form: Callable[[Trainer], Any]) -> None:
    def run(trainer: Trainer) -> Any:
        print(end="")
        return form(trainer)

    compiled, x, counts = gradc.compile(run), torch.randn(3), [0]
    for _ in range(4):
        assert same_bits(compiled(Trainer(x)), run(Trainer(x)))
        counts.append(gradc.counters["uncompiled"][REASON])
    assert counts[1] > 0 and counts == [number * counts[1] for number in range(5)]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the functions about which Dynamo asks what to do with them."""
    names, original = [], CatchErrorsWrapper.__call__

    def call(self: Any, frame: Any, *args: Any) -> Any:
        names.append(frame.f_code.co_name)
        return original(self, frame, *args)

    monkeypatch.setattr(CatchErrorsWrapper, "__call__", call)
    return names


def test_dynamo_asks_once(asked: list[str]) -> None:
    """It asked at each of the first thousand calls, for 25 to 100 us each."""
    run, trainer = gradc.compile(rest), Trainer(torch.randn(3))
    for _ in range(5):
        run(trainer)
    assert len([name for name in asked if "resume" in name]) == 1


@pytest.mark.parametrize("value, expected", [(torch.ones(2), MOST_CALLS), (None, 0)])
def test_no_more_is_counted_of_one_function(value: Any, expected: int) -> None:
    run, slot = gradc.compile(behind_a_break), Slot()
    slot.value = value
    for _ in range(MOST_CALLS + 10):
        run(slot)
    slot.value = torch.ones(2)
    run(slot)
    assert gradc.counters["uncompiled"][REASON] == expected


class Chain:
    """Tensors lie elsewhere at each call."""

    def __init__(self, number: int, value: Any) -> None:
        self.values = [None] * number + [Slot()]
        self.values[number].value = value

    def total(self) -> Any:
        return self.values[-1].value


def test_tensors_that_lie_elsewhere_at_the_next_call() -> None:
    def run(chain: Chain) -> Any:
        print(end="")
        return chain.total()

    compiled, x = gradc.compile(run), torch.randn(3)
    for place, value in [(2, x), (0, x), (3, x), (3, None), (1, x)]:
        assert compiled(Chain(place, value)) is value
    assert gradc.counters["uncompiled"][REASON] == 4


def test_what_a_function_is_called_with_is_not_kept() -> None:
    run = gradc.compile(rest)
    for number in range(1, 4):
        trainer = Trainer(torch.randn(3))
        run(trainer)
        seen = weakref.ref(trainer)
        del trainer
        assert seen() is None and gradc.counters["uncompiled"][REASON] == number


def fails(trainer: Trainer) -> Tensor:
    print(end="")
    value = trainer.loss()
    raise ValueError(value)


def test_errors_name_their_line() -> None:
    run = gradc.compile(fails)
    for _ in range(3):
        with pytest.raises(ValueError) as error:
            run(Trainer(torch.randn(3)))
        assert error.traceback[-1].lineno == fails.__code__.co_firstlineno + 2


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


def runs_backward(slot: Slot) -> Any:
    slot.value.backward()


COMPUTE = (adds, calls_torch, value_of)
CASES = [(function, function in COMPUTE) for function in (*COMPUTE, hands_on, runs_backward, statistics.mean)]


@pytest.mark.parametrize("function, expected", CASES)
def test_what_computes(function: Any, expected: bool) -> None:
    assert computes(function.__code__, function.__globals__) is expected
