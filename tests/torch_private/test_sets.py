"""Sets in compiled code: where their order shows Python lists them, and where it does not the graph goes on."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import gradc
from gradc.bits import same_bits

WEIGHTS = {"second": 2.0, "first": 3.0}


@pytest.fixture(autouse=True)
def fresh() -> None:
    gradc.reset()


def in_turn(x: Tensor, names) -> Tensor:
    """In their order, which rounding shows."""
    for name in names:
        x = x / 3 + WEIGHTS.get(name, len(str(name)))
    return x


def appended(names: list) -> list:
    names.append("last")
    return names


@pytest.mark.parametrize(
    "function",
    [
        lambda x: in_turn(x, sorted(set("hello") - set("h"))),
        lambda x: in_turn(x, sorted(set(WEIGHTS) | {"third"}, reverse=True)),
        lambda x: in_turn(x, appended(sorted({"b", "a"}))),
        lambda x: x * max({1, 5, 2}) * min(frozenset((3, 4))) + sum({1, 2, 3}),
        lambda x: in_turn(x, ",".join(sorted(set(WEIGHTS) - {"first"}))),
    ],
)
def test_whatever_the_order_is(function: Callable[[Tensor], Tensor]):
    x = torch.randn(3)
    compiled = gradc.compile(function)
    assert same_bits(compiled(x), function(x)) and same_bits(compiled(x), function(x))
    assert not gradc.counters["uncompiled"]


def test_what_the_set_is_made_of_changes():
    def function(x, weights):
        return in_turn(x, sorted(set(weights) - {"first"}))

    compiled, x = gradc.compile(function), torch.randn(3)
    for weights in ({"first": 1, "b": 2, "a": 3}, {"first": 1, "c": 2}, {"c": 2, "d": 1, "first": 3}, {}):
        assert same_bits(compiled(x, weights), function(x, weights))


@pytest.mark.parametrize(
    "function",
    [
        lambda x: in_turn(x, set("hello") - set("h")),
        lambda x: in_turn(x, sorted({"bb", "aa", "c"}, key=len)),
        lambda x: x * sum({0.1, 0.2, 0.3, 1e16}),
    ],
)
def test_where_the_order_shows(function: Callable[[Tensor], Tensor]):
    x = torch.randn(3)
    assert same_bits(gradc.compile(function)(x), function(x))
    assert gradc.counters["uncompiled"]["gradc: order of a set"] > 0


def test_what_cannot_be_compared():
    with pytest.raises(TypeError, match="not supported between instances"):
        gradc.compile(lambda x: in_turn(x, sorted({1, "a"})))(torch.ones(2))
