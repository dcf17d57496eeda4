"""Labels for profilers, and torch function modes: they see what they see in eager; behind them compiled code serves again."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.profiler import record_function

import gradc
from gradc.bits import same_bits

Function = Callable[[Tensor], Tensor]


def one() -> Function:
    def labelled(x: Tensor) -> Tensor:
        with record_function("mine: one"):
            y = x.sin()
        return y.cos()

    return labelled


def nested() -> Function:
    def labelled(x: Tensor) -> Tensor:
        with record_function("mine: outer"):
            y = x.sin()
            with record_function("mine: inner"):
                y = y.cos()
            return y.tanh()

    return labelled


def decorator() -> Function:
    @record_function("mine: decorator")
    def inner(x: Tensor) -> Tensor:
        return x.sin()

    return lambda x: inner(x).cos()


def in_a_function_that_is_called() -> Function:
    def inner(x: Tensor) -> Tensor:
        with torch.autograd.profiler.record_function("mine: called"):
            return x.sin()

    return lambda x: inner(inner(x)).cos()


def in_a_module_inside() -> Function:
    class Part(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            with record_function("mine: part"):
                return x.sin()

    return nn.Sequential(Part(), nn.Tanh(), Part())


def made_outside() -> Function:
    label = record_function("mine: made outside")

    def labelled(x: Tensor) -> Tensor:
        with label:
            return x.sin()

    return labelled


def entered_by_hand() -> Function:
    def labelled(x: Tensor) -> Tensor:
        label = record_function("mine: by hand")
        label.__enter__()
        y = x.sin()
        label.__exit__(None, None, None)
        return y.cos()

    return labelled


def in_a_context_manager_of_the_users() -> Function:
    @contextlib.contextmanager
    def label(name: str) -> Any:
        with record_function(name):
            yield

    def labelled(x: Tensor) -> Tensor:
        with label("mine: context manager"):
            return x.sin()

    return labelled


def whole_step() -> Function:
    model = nn.Linear(3, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(x: Tensor) -> Tensor:
        optimizer.zero_grad()
        with record_function("mine: forward"):
            loss = model(x).sum()
        with record_function("mine: backward"):
            loss.backward()
        with record_function("mine: update"):
            optimizer.step()
        return loss.detach()

    return step


LABELLED = [
    one, nested, decorator, in_a_function_that_is_called, in_a_module_inside, made_outside, entered_by_hand,
    in_a_context_manager_of_the_users, whole_step,
]  # fmt: skip
CALLED = {"aten::sin", "aten::cos", "aten::tanh", "aten::linear"}


def labels(function: Function) -> list[tuple[str, list[str]]]:
    """The user's labels in a trace of a call, each with what was called inside."""
    x = torch.ones(2, 3)
    with torch.profiler.profile() as profile:
        function(x)
    events = list(profile.events())

    def inside(label: Any) -> list[str]:
        begin, end = label.time_range.start, label.time_range.end
        called = (event for event in events if event.name in CALLED)
        return [event.name for event in called if begin <= event.time_range.start and event.time_range.end <= end]

    return [(event.name, inside(event)) for event in events if event.name.startswith("mine")]


@pytest.mark.usefixtures("nothing_captured")
@pytest.mark.parametrize("make", LABELLED)
def test_labels_stand_around_what_they_stand_around_in_eager(make: Callable[[], Function]) -> None:
    function = make()
    compiled, x = gradc.compile(function), torch.ones(2, 3)
    compiled(x)
    expected = labels(function)
    labels(compiled)  # which compiles what is called
    assert labels(compiled) == expected and expected
    assert gradc.counters["uncompiled"]["gradc: label for profilers"] > 0
    assert not gradc.counters["fallbacks"]


@pytest.mark.usefixtures("nothing_captured")
@pytest.mark.parametrize("make", [one, in_a_function_that_is_called, whole_step])
@pytest.mark.parametrize("is_profiled_first", [False, True])
def test_without_a_profiler_a_labelled_function_is_compiled_whole(
    make: Callable[[], Function], is_profiled_first: bool, capfd: pytest.CaptureFixture[str]
) -> None:
    compiled, x = gradc.compile(make()), torch.ones(2, 3)
    if is_profiled_first:
        labels(compiled)
    compiled(x)
    labels(compiled)
    gradc.counters.clear()
    compiled(x)
    assert not gradc.counters["uncompiled"] and not gradc.counters["stats"]["unique_graphs"]
    assert "ignored" not in capfd.readouterr().err


@pytest.mark.usefixtures("nothing_captured")
def test_a_profile_that_begins_inside() -> None:
    def profiled(x: Tensor) -> tuple[Tensor, list[str]]:
        with torch.profiler.profile() as profile, record_function("mine"):
            y = x.sin()
        return y, [event.name for event in profile.events() if event.name == "mine"]

    compiled = gradc.compile(profiled)
    assert compiled(torch.ones(2))[1] == ["mine"]
    assert dict(gradc.counters["uncompiled"]) == {"gradc: profiler": 1}


class Sees(TorchFunctionMode):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(func.__name__)
        return func(*args, **(kwargs or {}))


def attributes(x: Tensor) -> Tensor:
    y = x * 2 if x.requires_grad else x
    return y.T.sin() * y.shape[0]


def state(x: Tensor) -> Tensor:
    with torch.no_grad():
        y = x.sin()
    return y + x


def seen_by_a_mode(function: Function) -> list[str]:
    x = torch.ones(2, 3, requires_grad=True)
    with Sees() as mode:
        function(x)
    return mode.seen


@pytest.mark.usefixtures("nothing_captured")
@pytest.mark.parametrize("make", [lambda: attributes, lambda: state, whole_step], ids=["attributes", "state", "step"])
@pytest.mark.parametrize("is_compiled_before", [False, True])
def test_a_function_mode_sees_every_call(make: Callable[[], Function], is_compiled_before: bool) -> None:
    function = make()
    compiled, x = gradc.compile(function), torch.ones(2, 3, requires_grad=True)
    seen_by_a_mode(function)  # the optimizer's first step makes its state
    if is_compiled_before:
        compiled(x)
    assert seen_by_a_mode(compiled) == seen_by_a_mode(compiled) == seen_by_a_mode(function)
    assert gradc.counters["uncompiled"]["gradc: function mode"] > 0
    gradc.counters.clear()
    compiled(x)
    compiled(x)
    assert not gradc.counters["uncompiled"]["gradc: function mode"]


@pytest.mark.usefixtures("nothing_captured")
def test_a_function_mode_that_is_entered_inside() -> None:
    def inside(x: Tensor) -> tuple[Tensor, list[str]]:
        with Sees() as mode:
            y = x.T * x.shape[0]
        return y, mode.seen

    x = torch.ones(2, 3)
    assert gradc.compile(inside)(x)[1] == inside(x)[1]
    handled = {"gradc: function mode": 3}  # calls of the mode's own function
    assert dict(gradc.counters["uncompiled"]) == {"gradc: function mode that is entered": 1, **handled}


@pytest.mark.usefixtures("nothing_captured")
def test_a_default_device_is_no_mode_that_sees_calls() -> None:
    compiled, x = gradc.compile(attributes), torch.ones(2, 3, requires_grad=True)
    with torch.device("cpu"):
        assert same_bits(compiled(x), attributes(x))
    assert not gradc.counters["uncompiled"]
