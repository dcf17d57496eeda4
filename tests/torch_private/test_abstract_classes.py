"""``isinstance`` and ``issubclass`` of abstract classes answer as eager's, also of what is registered after the first call."""

from __future__ import annotations

import abc
from collections.abc import Callable, Sequence, Sized
from typing import Any

import pytest
import torch
from torch import Tensor

import gradc
from tests.oracle import check, leaf


def abstract() -> tuple[type, type]:
    class Known(abc.ABC):  # noqa: B024
        pass

    class Value:
        pass

    return Known, Value


def of_an_object(known: type, value: type) -> Callable[[Tensor], Tensor]:
    made = value()
    return lambda x: x * 3 if isinstance(made, known) else x * 2


def of_one_of_several(known: type, value: type) -> Callable[[Tensor], Tensor]:
    made = value()
    return lambda x: x * 3 if isinstance(made, (int, (known, str))) else x * 2


def of_a_union(known: type, value: type) -> Callable[[Tensor], Tensor]:
    made, union = value(), int | known
    return lambda x: x * 3 if isinstance(made, union) else x * 2


def of_a_class(known: type, value: type) -> Callable[[Tensor], Tensor]:
    return lambda x: x * 3 if issubclass(value, known) else x * 2


@pytest.mark.parametrize("make", [of_an_object, of_one_of_several, of_a_union, of_a_class])
def test_a_class_that_is_registered_after_the_first_call_is_one(make: Any) -> None:
    def step(compile: Any, x: Tensor) -> Any:
        known, value = abstract()
        run = compile(make(known, value))
        gradients = list(torch.autograd.grad(run(x).sum(), x))
        known.register(value)  # type: ignore[attr-defined]
        return [*gradients, *torch.autograd.grad(run(x).sum(), x)]

    check(step, leaf(3), allow_fallback=True)


@pytest.mark.usefixtures("nothing_captured")
def test_what_is_registered_elsewhere_captures_nothing_anew() -> None:
    sizes = [2, 3]
    function = gradc.compile(lambda x: x * 3 if isinstance(sizes, Sequence) and isinstance(x, Sized) else x * 2)
    for _ in range(3):
        known, value = abstract()
        known.register(value)  # type: ignore[attr-defined]
        function(torch.ones(3))
    assert gradc.counters["stats"]["unique_graphs"] == 1
