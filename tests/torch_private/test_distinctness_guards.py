"""Objects that were two at the first call, and one at the second; and the other way."""

from __future__ import annotations

import collections
import operator
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import gradc
from tests.oracle import check, leaf


class Plain:
    value = 1.0


MAKE: dict[str, Callable[[], Any]] = {
    "list": lambda: [1.0],
    "dict": lambda: {"value": 1.0},
    "set": lambda: {1},
    "deque": lambda: collections.deque([1.0]),
    "namespace": lambda: types.SimpleNamespace(value=1.0),
    "module": nn.Tanh,
    "tensor": lambda: torch.ones(3),
    "object": Plain,
}


def write(obj: Any) -> None:
    match obj:
        case list() | collections.deque():
            obj.append(2.0)
        case dict():
            obj["value"] = 9.0
        case set():
            obj.add(7)
        case Tensor():
            obj.mul_(3)
        case _:
            obj.value = 9.0


def read(obj: Any, x: Tensor) -> Tensor:
    match obj:
        case list() | set() | collections.deque():
            return x * len(obj)
        case dict():
            return x * obj["value"]
        case Tensor():
            return x * obj
        case _:
            return x * getattr(obj, "value", 1.0)


def written(a: Any, b: Any, x: Tensor) -> Any:
    write(a)
    return read(b, x)


def compared(a: Any, b: Any, x: Tensor) -> Any:
    return x * 2 if a is b else x.sin()


def by_function(a: Any, b: Any, x: Tensor) -> Any:
    return x.sin() if operator.is_not(a, b) else x * 2


def equal(a: Any, b: Any, x: Tensor) -> Any:
    return x * 2 if not isinstance(a, Tensor) and a == b else x.sin()


def keys(a: Any, b: Any, x: Tensor) -> Any:
    return x * len({a, b}) if type(a).__hash__ else x


def found(a: Any, b: Any, x: Tensor) -> Any:
    return x * 2 if any(each is b for each in [a]) else x.sin()


@pytest.mark.parametrize("use", [written, compared, by_function, equal, keys, found])
@pytest.mark.parametrize("make", MAKE.values(), ids=MAKE)
def test_two_that_become_one(make: Callable[[], Any], use: Callable[[Any, Any, Tensor], Any]) -> None:
    """They stayed two: what was written into one was not read of the other, and a branch was the first call's."""

    def step(compile: Any, x: Tensor) -> Any:
        run, seen = compile(use), []
        for is_one in (False, True, False, True):
            first = make()
            seen.append(run(first, first if is_one else make(), x))
        return seen

    check(step, leaf(3), allow_fallback=True)


def two_layers() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))


TIED: dict[str, Callable[[Any, Tensor], Any]] = {
    "is": lambda model, x: model(x) * (2 if model[0].weight is model[1].weight else 3),
    "parameters": lambda model, x: model(x) * len(list(model.parameters())),
    "modules": lambda model, x: model(x) * len(list(model.modules())),
    "set": lambda model, x: model(x) * len({each.weight for each in model}),
    "ids": lambda model, x: model(x) * len({id(each.weight) for each in model}),
}


@pytest.mark.parametrize("use", TIED.values(), ids=TIED)
def test_weights_that_are_tied_later(use: Callable[[Any, Tensor], Any]) -> None:
    def step(compile: Any, x: Tensor, model: Any) -> Any:
        run = compile(lambda x: use(model, x))
        seen = [run(x)]
        model[1].weight = model[0].weight
        seen.append(run(x))
        model[1] = model[0]
        return [*seen, run(x)]

    check(step, leaf(2, 3), two_layers, allow_fallback=True)


class Caching(nn.Module):
    """Each layer keeps what it calculated last."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.last = nn.Linear(3, 3), None

    def forward(self, x: Tensor) -> Tensor:
        self.last = self.linear(x if self.last is None else x + self.last.detach())
        return self.last


def test_a_layer_that_comes_to_stand_twice() -> None:
    def step(compile: Any, x: Tensor, model: Any) -> Any:
        run = compile(model)
        seen = [run(x), run(x)]
        model[1] = model[0]
        return [*seen, run(x), run(x)]

    check(step, leaf(2, 3), lambda: nn.Sequential(Caching(), Caching()), allow_fallback=True)


def test_what_stays_two_is_compiled_once() -> None:
    numbers = {"steps": 0, "calls": 0}

    @gradc.compile
    def run(x: Tensor, seen: list[Any], others: list[Any]) -> Tensor:
        numbers["steps"] += 1
        seen.append(1.0)
        return x * len(others)

    for _ in range(3):
        numbers.update(steps=0)
        run(leaf(3)(), [], [1.0])
    assert gradc.counters["stats"]["unique_graphs"] == 1


def test_functions_that_are_looked_up_in_a_set_made_by_the_call() -> None:
    """As the mode of a default device does, for each call of a function of torch's."""

    def step(compile: Any, x: Tensor) -> Tensor:
        with torch.device("cpu"):
            return compile(lambda x: torch.tanh(x @ x).exp())(x)

    assert check(step, leaf(3, 3)).num_graphs == 1


SCALE = torch.tensor([1.0, 2.0])
HOLDER = types.SimpleNamespace(scale=SCALE)


@pytest.mark.parametrize("read_global", [lambda: SCALE, lambda: HOLDER.scale], ids=["global", "attribute of a global"])
def test_an_argument_that_was_a_global_at_the_first_call(read_global):
    def step(compile: Any) -> list[Tensor]:
        f = compile(lambda x: read_global() * x)
        return [f(SCALE), f(torch.tensor([5.0, 6.0])), f(SCALE)]

    check(step)
