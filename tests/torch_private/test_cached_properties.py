"""``functools.cached_property`` in compiled code: computed once, kept where Python keeps it, by objects and modules."""

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import gradc
from gradc.bits import same_bits


class Scaled:
    def __init__(self, x: Tensor) -> None:
        self.x, self.asked = x, 0

    @functools.cached_property
    def doubled(self) -> Tensor:
        self.asked += 1
        return self.x * 2


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight, self.asked = nn.Parameter(torch.ones(3)), 0

    @functools.cached_property
    def scale(self) -> int:
        self.asked += 1
        return 7

    @functools.cached_property
    def inner(self) -> nn.Module:
        return nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x * self.weight) * self.scale


@pytest.fixture(autouse=True)
def fresh() -> None:
    gradc.reset()


def check_alike(function: Callable[..., Tensor], compiled: Callable[..., Tensor], one: Any, other: Any, x: Tensor) -> None:
    assert same_bits(compiled(one, x), function(other, x))
    assert list(vars(one)) == list(vars(other)) and one.asked == other.asked


def test_of_an_object_made_inside() -> None:
    def function(x: Tensor) -> Tensor:
        made = Scaled(x)
        return made.doubled.sum() + made.doubled.mean() + made.asked

    compiled, x = gradc.compile(function), torch.randn(3)
    for _ in range(2):
        assert same_bits(compiled(x), function(x))
    assert not gradc.counters["uncompiled"]


def test_of_an_object_from_outside_at_each_call() -> None:
    def function(scaled: Scaled, x: Tensor) -> Tensor:
        return x * scaled.doubled

    compiled, x = gradc.compile(function), torch.randn(3)
    one, other = Scaled(torch.ones(3)), Scaled(torch.ones(3))
    for _ in range(3):
        check_alike(function, compiled, one, other, x)
    for scaled in (one, other):
        del scaled.doubled
        scaled.x = torch.full((3,), 5.0)
    for _ in range(2):
        check_alike(function, compiled, one, other, x)
    assert one.asked == 2 and not gradc.counters["uncompiled"]


def test_of_a_module_is_no_part_of_it() -> None:
    compiled, one, other, x = gradc.compile(lambda model, x: model(x)), Model(), Model(), torch.randn(3)
    for _ in range(3):
        check_alike(lambda model, x: model(x), compiled, one, other, x)
    assert [name for name, _ in one.named_modules()] == [name for name, _ in other.named_modules()]
    assert one.asked == 1 and "scale" in vars(one)


class Failing:
    asked = 0

    @functools.cached_property
    def value(self) -> int:
        self.asked += 1
        raise LookupError("not yet")


class Slotted:
    __slots__ = ("x",)

    @functools.cached_property
    def value(self) -> int:
        return 1


@pytest.mark.parametrize("make, error", [(Failing, LookupError), (Slotted, TypeError)])
def test_errors_are_pythons(make: type, error: type[Exception]) -> None:
    def function(owner: Any, x: Tensor) -> Tensor:
        return x * owner.value

    compiled, messages = gradc.compile(function), []
    for run in (function, compiled, compiled):
        owner = make()
        with pytest.raises(error) as raised:
            run(owner, torch.ones(2))
        messages.append((str(raised.value), getattr(owner, "asked", None)))
    assert len(set(messages)) == 1
