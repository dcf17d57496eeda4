"""Attributes of what is no object to Dynamo: functions, methods, caches, slots, members of an enum, functions of torch."""

from __future__ import annotations

import enum
import functools
from typing import Any

import pytest
import torch
from torch import nn

import gradc
from tests.oracle import check, leaf
from tests.torch_private.test_attribute_dict_aliasing import OF_SHIFT, compare, shift


class Method:
    def shift(self, x: Any) -> Any:
        return x + 1


class Guarded:
    """Dynamo does not track it."""

    def __getattribute__(self, name: str) -> Any:
        return object.__getattribute__(self, name)


@functools.lru_cache
def cached(x: Any) -> Any:
    return x


KEPT: dict[str, tuple[Any, dict[str, Any]]] = {
    "function": (shift, OF_SHIFT),
    "method": (Method.shift, vars(Method.shift)),
    "bound method": (Method().shift, vars(Method.shift)),
    "cache": (cached, vars(cached)),
    "object with __getattribute__": (guarded := Guarded(), vars(guarded)),
}


@pytest.mark.parametrize("ask", ["attribute", "getattr", "hasattr", "dictionary", "vars"])
@pytest.mark.parametrize("write", ["item", "update"])
@pytest.mark.parametrize("owner", KEPT)
def test_a_kept_dictionary_of_attributes(owner: str, write: str, ask: str) -> None:
    value, kept = KEPT[owner]
    asks = {
        "attribute": lambda: value.w,
        "getattr": lambda: getattr(value, "w", 9),
        "hasattr": lambda: hasattr(value, "w"),
        "dictionary": lambda: value.__dict__["w"],
        "vars": lambda: vars(value).get("w"),
    }

    def calculate(x: torch.Tensor, n: int) -> Any:
        if write == "item":
            kept["w"] = n
        else:
            kept.update(w=n)
        return x * 2, asks[ask]()

    compare(calculate, lambda: kept.pop("w", None))


class Methods:
    def plain(self, x: Any) -> Any:
        return x

    @functools.lru_cache  # noqa: B019
    def cached(self, x: Any) -> Any:
        return x


@pytest.mark.parametrize("name", ["plain", "cached"])
def test_attributes_of_methods(name: str) -> None:
    methods, kept = Methods(), vars(vars(Methods)[name])

    def calculate(x: torch.Tensor, n: int) -> Any:
        before = hasattr(getattr(methods, name), "w")
        kept["w"] = n
        return x * getattr(methods, name).w, before, getattr(getattr(methods, name), "w", 9)

    compare(calculate, lambda: kept.pop("w", None))


@pytest.mark.parametrize("name", ["plain", "cached"])
def test_attributes_of_methods_that_change_between_calls(name: str) -> None:
    methods, kept = Methods(), vars(vars(Methods)[name])

    def calculate(x: torch.Tensor) -> Any:
        return x * getattr(getattr(methods, name), "w", 9), hasattr(getattr(methods, name), "w")

    def step(compile: Any, x: torch.Tensor) -> Any:
        kept.pop("w", None)
        run, seen = compile(calculate), []
        for n in (2, 3, 3):
            seen.append(run(x))
            kept["w"] = n
        return [*seen, run(x)]

    check(step, leaf(3))


def test_an_attribute_of_a_cache_that_is_new() -> None:
    """Dynamo asked the function inside of it."""

    def calculate(x: torch.Tensor, n: int) -> Any:
        before = hasattr(cached, "w")
        cached.w = n  # type: ignore[attr-defined]
        return x * getattr(cached, "w", 9), before

    compare(calculate, lambda: vars(cached).pop("w", None))


class Slotted:
    __slots__ = ("v",)


def test_a_slot_by_its_descriptor() -> None:
    slotted = Slotted()
    slotted.v = 1
    get = Slotted.v.__get__  # type: ignore[attr-defined]

    def calculate(x: torch.Tensor, n: int) -> Any:
        slotted.v = n
        return x * Slotted.v.__get__(slotted) * slotted.v, get(slotted)  # type: ignore[attr-defined]

    compare(calculate)


class Color(enum.Enum):
    RED = 1


def test_an_attribute_of_a_member_of_an_enum() -> None:
    def calculate(x: torch.Tensor, n: int) -> Any:
        Color.RED.rate = n  # type: ignore[attr-defined]
        return x * Color(1).rate * Color["RED"].rate  # type: ignore[attr-defined]

    compare(calculate)


@pytest.mark.parametrize("look", [lambda: Color(1), lambda: Color["RED"], lambda: Color.RED, lambda: next(iter(Color))])
def test_an_attribute_of_a_member_that_changes_between_calls(look: Any) -> None:
    def calculate(x: torch.Tensor) -> Any:
        member = look()
        return x * getattr(member, "rate", 7) * member.value, hasattr(member, "weight"), member.name

    def step(compile: Any, x: torch.Tensor) -> Any:
        vars(Color.RED).pop("rate", None)
        run, seen = compile(calculate), []
        for rate in (2, 3, 3):
            seen.append(run(x))
            Color.RED.rate = rate  # type: ignore[attr-defined]
        Color.RED.weight = 1  # type: ignore[attr-defined]
        seen.append(run(x))
        del Color.RED.weight  # type: ignore[attr-defined]
        return seen

    check(step, leaf(3))


def test_an_attribute_of_a_function_of_torch() -> None:
    function: Any = nn.functional.relu

    def calculate(x: torch.Tensor) -> Any:
        return function(x) * getattr(function, "rate", 7), hasattr(function, "other")

    def step(compile: Any, x: torch.Tensor) -> Any:
        run, seen = compile(calculate), []
        for rate in (2, 3, 3):
            seen.append(run(x))
            function.rate = rate
        function.other = 1
        seen.append(run(x))
        del function.rate, function.other
        return seen

    check(step, leaf(3))


class Stepped(nn.Module):
    """As lightning asks a training step for its signature."""

    def __init__(self, compile: Any) -> None:
        super().__init__()
        self.step = compile(self.step)  # type: ignore[assignment,method-assign]

    def step(self, x: torch.Tensor) -> torch.Tensor:
        return x.sin()

    def forward(self, x: torch.Tensor) -> Any:
        step: Any = self.step
        named = step.__name__, step.__doc__, hasattr(step, "rate"), getattr(step, "rate", 7), hasattr(step, "other")
        step = step.__wrapped__ if hasattr(step, "__wrapped__") else step
        try:
            return x * step.other, named
        except AttributeError:
            return x * 2, named, step.__name__


def test_a_compiled_method_is_asked_for_what_is_its_own() -> None:
    gradc.reset()

    def step(compile: Any, x: torch.Tensor) -> Any:
        module = Stepped(gradc.compile)
        run, seen = compile(module), []
        for rate in (2, 3, 3):
            seen.append(run(x))
            module.step.rate = rate  # type: ignore[attr-defined]
        return seen

    check(step, leaf(3))
    assert not gradc.counters["fallbacks"] and not gradc.counters["uncompiled"]
