"""What is drawn from an iterator that was made outside of compiled code, is what comes next at each call."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import Any

import pytest
import torch

from tests.oracle import check, leaf


def counting() -> Iterator[int]:
    yield from range(1, 20)


ITERATORS: dict[str, Callable[[], Iterator[Any]]] = {
    "generator": counting,
    "generator expression": lambda: (number + 1 for number in range(20)),
    "list": lambda: iter([*range(1, 20)]),
    "range": lambda: iter(range(1, 20)),
    "count": lambda: itertools.count(1),
    "cycle": lambda: itertools.cycle([1, 2, 3]),
    "map": lambda: map(abs, range(1, 20)),
}


@pytest.mark.parametrize("kind", ITERATORS)
def test_each_call_gets_what_comes_next(kind: str) -> None:
    def step(compile: Any, x: torch.Tensor) -> Any:
        numbers = ITERATORS[kind]()
        scaled = compile(lambda x: x.sin() * next(numbers))
        found = [scaled(x), scaled(x), x * next(numbers), scaled(x)]
        sum(found).sum().backward()
        return found

    check(step, leaf(3))


COUNTS = {"ints": (1,), "steps": (5, 3), "floats": (0.5, 0.25), "infinite": (float("inf"),), "others": (Fraction(1, 3),)}


@pytest.mark.parametrize("start", COUNTS.values(), ids=COUNTS)
def test_counts_warn_of_nothing(start: tuple[Any, ...]) -> None:
    """Dynamo asked how to pickle them, at each call: Python 3.12 and 3.13 warn of that."""

    def step(compile: Any, x: torch.Tensor) -> Any:
        numbers = itertools.count(*start)
        scaled = compile(lambda x: x.sin() * float(next(numbers)))
        with warnings.catch_warnings(record=True) as warned, torch.compiler.config.patch(force_disable_caches=False):
            warnings.simplefilter("always")
            found = [scaled(x), scaled(x), scaled(x)]
        return found, next(numbers), [str(each.message) for each in warned]

    check(step, leaf(3))
