"""Functions that raise for some numbers, given numbers that change: the error is caught where eager catches it."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.oracle import check, leaf

OF_INTEGERS: dict[str, Callable[[int], Any]] = {
    "/": lambda n: 1 / (n - 1),
    "//": lambda n: 7 // (n - 1),
    "%": lambda n: 7 % (n - 1),
    "divmod": lambda n: divmod(7, n - 1),
    "**": lambda n: (n - 1) ** -1,
    "<<": lambda n: 1 << (n - 2),
    "division of what was made of it": lambda n: 1.5 / (n * 0.5 - 0.5),
}
OF_FLOATS: dict[str, Callable[[float], Any]] = {
    "/": lambda a: 1 / (a - 0.5),
    "//": lambda a: 7 // (a - 0.5),
    "%": lambda a: 7 % (a - 0.5),
    "**": lambda a: (a - 0.5) ** -1,
    "sqrt": lambda a: math.sqrt(a - 0.6),
    "log": lambda a: math.log(a - 0.5),
    "int": lambda a: int(a * 1e300 * 1e300),
}


def caught(function: Callable[[Any], Any], numbers: tuple[Any, ...], dynamic: bool | None) -> Any:
    def step(compile: Any, x: Tensor) -> Any:
        def f(x: Tensor, number: Any) -> tuple[Tensor, Any]:
            try:
                made = function(number)
            except (ZeroDivisionError, ValueError, OverflowError) as error:
                made = type(error).__name__
            return x * 2, made

        call = compile(f, dynamic=dynamic)
        return [call(x, number) for number in numbers]

    return step


@pytest.mark.parametrize("dynamic", [True, None])
@pytest.mark.parametrize("name", OF_INTEGERS)
def test_of_an_integer(name: str, dynamic: bool | None) -> None:
    """Compiled for 3, the division by zero of 1 raised behind the function; a negative shift was 0."""
    check(caught(OF_INTEGERS[name], (3, 4, 5, 1, 0, 6), dynamic), leaf(3), allow_fallback=True)


@pytest.mark.parametrize("dynamic", [True, None])
@pytest.mark.parametrize("name", OF_FLOATS)
def test_of_a_float(name: str, dynamic: bool | None) -> None:
    check(caught(OF_FLOATS[name], (3.0, 4.0, 5.0, 0.5, 0.25, 6.0), dynamic), leaf(3), allow_fallback=True)


def test_a_context_manager_of_the_user_s_sees_the_error() -> None:
    """contextlib.suppress is one."""

    class Suppress:
        def __enter__(self) -> None: ...
        def __exit__(self, kind: Any, *_: Any) -> bool:
            return kind is ZeroDivisionError

    def step(compile: Any, x: Tensor) -> Any:
        def f(x: Tensor, a: float) -> Any:
            made = -1.0
            with Suppress():
                made = 1 / a
            return x * 2, made

        call = compile(f)
        return [call(x, a) for a in (1.0, 2.0, 3.0, 0.0)]

    check(step, leaf(3), allow_fallback=True)


def test_without_a_handler_it_stays_in_the_graph() -> None:
    """no_grad and autocast only put back what they set."""

    def step(compile: Any, x: Tensor) -> Any:
        def f(x: Tensor, temperature: float) -> Tensor:
            with torch.no_grad():
                y = x * (1 / temperature)
            return x * math.exp(-temperature) + y

        call = compile(f)
        return [call(x, temperature) for temperature in (1.0, 0.5, 0.25, 0.125)]

    assert check(step, leaf(3)).num_graphs == 2
