"""State that two names lead to, and that compiled code writes by one of them: dictionaries of attributes, views, proxies."""

from __future__ import annotations

import builtins
import functools
import os
import types
import weakref
from typing import Any

import pytest
import torch
from torch import nn

import gradc
from tests.oracle import check, leaf

builtins.RATE_OF_TESTS = 1  # type: ignore[attr-defined]


class Thing:
    def __init__(self) -> None:
        self.v = 1


def shift(x: Any) -> Any:
    return x + 1


THING, OTHER, LAYER, TWIN = Thing(), Thing(), nn.Linear(3, 3), nn.Linear(3, 3)
OTHER.__dict__, TWIN.__dict__ = THING.__dict__, LAYER.__dict__
shift.v = 1  # type: ignore[attr-defined]
OF_THING, OF_LAYER, OF_SHIFT = vars(THING), vars(LAYER), vars(shift)
PROXY = weakref.proxy(THING)
TABLE = {"v": 1}
VIEW, KEYS = types.MappingProxyType(TABLE), TABLE.keys()


def write_attribute(n: int) -> None:
    THING.v = n


def write_dictionary(n: int) -> None:
    OF_THING["v"] = n


def write_through_its_dictionary(n: int) -> None:
    THING.__dict__.update(v=n)


def write_through_the_other(n: int) -> None:
    OTHER.v = n


READS = {
    "attribute": lambda: THING.v,
    "getattr": lambda: getattr(THING, "v", 5),
    "dictionary": lambda: OF_THING["v"],
    "its dictionary": lambda: vars(THING)["v"],
    "the other": lambda: OTHER.v,
    "proxy": lambda: PROXY.v,
    "values": lambda: sum(OF_THING.values()),
}


@pytest.mark.parametrize("read", READS)
@pytest.mark.parametrize("write", [write_attribute, write_dictionary, write_through_its_dictionary, write_through_the_other])
def test_attributes_by_two_names(write: Any, read: str) -> None:
    def calculate(x: torch.Tensor, n: int) -> Any:
        before = READS[read]()
        write(n)
        y = x.sin() * READS[read]()
        write(n + 1)
        return y * READS[read](), before

    def step(compile: Any, x: torch.Tensor) -> Any:
        run, seen, THING.v = compile(calculate), [], 1
        for n in (2, 3, 3, 5):
            y, before = run(x, n)
            y.sum().backward()
            seen += [y, before, THING.v, OF_THING["v"]]
        return seen

    check(step, leaf(3))


def compare(calculate: Any, restore: Any = lambda: None) -> None:
    def step(compile: Any, x: torch.Tensor) -> Any:
        restore()
        run = compile(calculate)
        return [run(x, n) for n in (2, 3, 3, 5)]

    check(step, leaf(3), allow_fallback=True)  # truths that are calculated of n are returned


def test_attributes_of_a_module_and_its_dictionary() -> None:
    def calculate(x: torch.Tensor, n: int) -> Any:
        was = OF_LAYER["training"]
        LAYER.train(n % 2 == 0)
        y = x * (2 if OF_LAYER["training"] else 3)
        OF_LAYER["training"] = n == 5
        return y * (5 if LAYER.training else 7), was

    compare(calculate)


def test_two_modules_with_one_dictionary() -> None:
    def calculate(x: torch.Tensor, n: int) -> Any:
        LAYER.train(n % 2 == 0)
        y = x * (2 if TWIN.training else 3)
        TWIN.eval()
        return y * (5 if LAYER.training else 7)

    compare(calculate)


def test_attributes_of_a_function_and_its_dictionary() -> None:
    def calculate(x: torch.Tensor, n: int) -> Any:
        OF_SHIFT["v"] = n
        return shift(x) * shift.v * getattr(shift, "v", 9)  # type: ignore[attr-defined]

    compare(calculate)


def test_a_builtin_that_is_written_as_an_attribute() -> None:
    def calculate(x: torch.Tensor, n: int) -> Any:
        builtins.RATE_OF_TESTS = n  # type: ignore[attr-defined]
        return x * RATE_OF_TESTS  # type: ignore[name-defined] # noqa: F821

    compare(calculate)


def restore_table() -> None:
    TABLE.clear()
    TABLE["v"] = 1


@pytest.mark.parametrize("is_met_first", [False, True])
@pytest.mark.parametrize(
    "look", [lambda: len(VIEW), lambda: "w" in VIEW, lambda: list(VIEW), lambda: len(KEYS), lambda: "w" in KEYS]
)
def test_views_of_a_dictionary_that_grows(look: Any, is_met_first: bool) -> None:
    def calculate(x: torch.Tensor, n: int) -> Any:
        before = look() if is_met_first else None
        TABLE["w"] = n
        return x * TABLE["w"], before, look()

    compare(calculate, restore_table)


def test_attributes_of_a_partial() -> None:
    """As ``functools.update_wrapper`` gives it: Dynamo answered for a new partial, without them."""
    wrapped = functools.update_wrapper(functools.partial(torch.mul, other=2.0), shift)

    def calculate(x: torch.Tensor, n: int) -> Any:
        return wrapped(x), getattr(wrapped, "__name__", "none"), hasattr(wrapped, "__wrapped__"), wrapped.keywords["other"]

    compare(calculate)


def test_getenv_is_asked_again() -> None:
    def calculate(x: torch.Tensor) -> Any:
        return x * int(os.getenv("RATE_OF_TESTS", "7"))

    def step(compile: Any, x: torch.Tensor) -> Any:
        run, seen = compile(calculate), []
        for rate in ("2", "3", "3"):
            os.environ["RATE_OF_TESTS"] = rate
            seen.append(run(x))
        del os.environ["RATE_OF_TESTS"]
        return [*seen, run(x)]

    check(step, leaf(3))


def test_it_is_counted() -> None:
    def calculate(x: torch.Tensor, n: int) -> Any:
        OF_THING["v"] = n
        return x * THING.v

    gradc.counters.clear()
    gradc.compile(calculate)(torch.ones(3), 2)
    (reason,) = gradc.counters["uncompiled"]
    assert reason == "gradc: dictionary of attributes"


def test_it_costs_no_graph_where_one_name_is_used() -> None:
    def calculate(x: torch.Tensor, n: int) -> Any:
        THING.v = n
        vars(THING)["v"] += 1
        TABLE["v"] = THING.v
        return x * THING.v * TABLE["v"]

    gradc.counters.clear()
    gradc.compile(calculate, fullgraph=True)(torch.ones(3), 2)
    assert not gradc.counters["uncompiled"]
