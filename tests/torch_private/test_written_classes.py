"""What compiled code writes into a class or a function is read at once, by all ways that lead there; and functions' names."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch

import gradc
from tests.oracle import check, constant


class Base:
    count = 0

    @classmethod
    def advance(cls) -> None:
        cls.count += 1


class Derived(Base): ...


OBJECT = Derived()


def counted(function: Any) -> Any:
    @functools.wraps(function)
    def wrapper(*args: Any) -> Any:
        wrapper.calls += 1  # type: ignore[attr-defined]
        return function(*args)

    wrapper.calls = 0  # type: ignore[attr-defined]
    return wrapper


@counted
def shifted(x: torch.Tensor) -> torch.Tensor:
    """Adds one."""
    return x + 1


def through_a_subclass(x: torch.Tensor) -> Any:
    Base.count += 1
    return x * Derived.count


def through_an_instance(x: torch.Tensor) -> Any:
    before = OBJECT.count
    Base.count = 7
    return x * OBJECT.count, before


def through_its_class(x: torch.Tensor) -> Any:
    OBJECT.__class__.count = 3
    return x * Derived.count, OBJECT.count


def by_a_class_method(x: torch.Tensor) -> Any:
    Derived.advance()
    Derived.advance()
    return x * OBJECT.count, Base.count


def deleted(x: torch.Tensor) -> Any:
    before = OBJECT.count
    del Derived.count
    return x * (OBJECT.count + 1), before


def by_a_decorator(x: torch.Tensor) -> Any:
    before = shifted.calls
    return shifted(shifted(x)) * shifted.calls, before


def by_setattr(x: torch.Tensor, function: Any = shifted) -> Any:
    was_there = hasattr(function, "mark")
    shifted.mark = 2.0
    return x * getattr(function, "mark", 0.0), was_there


@pytest.mark.parametrize(
    "write",
    [through_a_subclass, through_an_instance, through_its_class, by_a_class_method, deleted, by_a_decorator, by_setattr],
)
def test_it_is_read_by_all_ways(write: Any) -> None:
    def step(compile: Any, x: torch.Tensor) -> Any:
        run, seen = compile(write), []
        vars(shifted).pop("mark", None)
        for _ in range(3):
            Base.count, Derived.count, shifted.calls = 1, 2, 0
            if write is not deleted:
                del Derived.count
            seen.append([run(x), Base.count, OBJECT.count, shifted.calls])
        return seen

    check(step, constant(3))


def test_it_is_counted() -> None:
    gradc.counters.clear()
    gradc.compile(through_a_subclass)(torch.ones(3))
    (reason,) = gradc.counters["uncompiled"]
    assert reason == "gradc: attribute of a class or function"


def test_names_of_a_wrapped_function_are_the_functions() -> None:
    """In a container, where torch 2.15 has a constant of the code's own name."""

    def tell(x: torch.Tensor) -> Any:
        names = {"name": (shifted.__name__, shifted.__qualname__), "doc": [shifted.__doc__, shifted.__module__]}
        return x * (2 if shifted.__name__ == "shifted" else 3), names, f"{shifted.__name__}: {shifted.__doc__}"

    check(lambda compile, x: compile(tell)(x), constant(3))
