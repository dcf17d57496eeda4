"""Context variables that compiled code sets, resets and reads: one graph where nothing stays set, and Python's values."""

import contextvars
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import gradc
from gradc.bits import same_bits

variable: contextvars.ContextVar[Any] = contextvars.ContextVar("variable", default=None)
unset: contextvars.ContextVar[Any] = contextvars.ContextVar("unset")


@pytest.fixture(autouse=True)
def fresh() -> None:
    gradc.reset()


def results(function: Callable[[Tensor], Tensor]) -> list[Any]:
    """Of two calls with nothing set, two with 9, one more with nothing set, and what is set behind each."""

    def calls() -> list[Any]:
        said = []
        for value in (None, None, 9, 9, None):
            variable.set(value)
            said += [function(torch.tensor([1.0, -2.0])), variable.get(), unset.get("unset")]
        return said

    return contextvars.copy_context().run(calls)


def check(function: Callable[[Tensor], Tensor], *, graphs: bool = True) -> None:
    assert same_bits(results(gradc.compile(function)), results(function))
    assert (not gradc.counters["uncompiled"]) == graphs, dict(gradc.counters["uncompiled"])


def test_set_and_reset_as_transformers_do():
    def forward(x):
        token = variable.set({"hidden": [x]})
        try:
            return x * len(variable.get()["hidden"]) + variable.get()["hidden"][0].sin()
        finally:
            variable.reset(token)

    check(forward)


def test_the_value_from_outside():
    check(lambda x: x if variable.get() is None else x * variable.get())


def test_one_inside_of_another():
    def nested(x):
        outer = variable.set(2)
        inner = variable.set(3)
        x = x * variable.get()
        variable.reset(inner)
        x = x + variable.get()
        variable.reset(outer)
        return x + (variable.get() or 0)

    check(nested)


def test_one_that_has_no_value_yet():
    def function(x):
        token = unset.set(3)
        x = x * unset.get()
        unset.reset(token)
        return x

    check(function)


def test_what_stays_set():
    def function(x):
        variable.set(5)
        return x * variable.get()

    check(function, graphs=False)
    assert gradc.counters["uncompiled"]["gradc: context variable"] > 0


def test_a_graph_that_ends_in_between():
    def function(x):
        token = variable.set(7)
        x = x * 2
        print(end="")
        x = x * variable.get()
        variable.reset(token)
        return x

    check(function, graphs=False)


def test_the_wrong_order_of_resets():
    def function(x):
        outer, inner = variable.set(1), variable.set(2)
        variable.reset(outer)
        x = x * (variable.get() or 10)
        variable.reset(inner)
        return x * (variable.get() or 10)

    check(function, graphs=False)


def test_what_has_no_value():
    def function(x):
        try:
            return x * unset.get()
        except LookupError:
            return x + 1

    check(function, graphs=False)
