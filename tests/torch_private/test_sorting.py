"""Sorted lists of tuples with tensors in compiled code: what decides is compared, and nothing else."""

import collections
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import gradc
from gradc.bits import same_bits

Function = Callable[..., Tensor]


@pytest.fixture(autouse=True)
def fresh() -> None:
    gradc.reset()


def added(pairs) -> Tensor:
    """In their order, which rounding shows."""
    total = pairs[0][-1] * 3
    for pair in pairs[1:]:
        total = total / 3 + pair[-1]
    return total


def check(function: Function, *args, graphs: bool = True) -> None:
    compiled = gradc.compile(function)
    for _ in range(2):
        assert same_bits(compiled(*args), function(*args))
    assert bool(gradc.counters["uncompiled"]) is not graphs, gradc.counters["uncompiled"]


@pytest.mark.parametrize(
    "pairs",
    [
        lambda x: sorted({"b": x.sum(), "a": x.mean(), "c": x.prod()}.items()),
        lambda x: sorted({"b": x.sum(), "a": x.mean(), "c": x.prod()}.items(), reverse=True),
        lambda x: sorted([(2, x), (1, 2 * x)], key=None),
        lambda x: sorted([[2.5, x], [-1.0, 2 * x], [True, 3 * x]]),
        lambda x: sorted([("a", 2, x), ("a", 1, 2 * x), ("", 3 * x)]),
        lambda x: sorted([(1, 2, x), (1,)], reverse=True) and [(x,)],
        lambda x: sorted({"z": x}.items()),
    ],
)
def test_first_items_decide(pairs: Callable[[Tensor], list]) -> None:
    check(lambda x: added(pairs(x)), torch.randn(5))


def test_a_list_sorted_in_place_is_the_callers() -> None:
    def function(x: Tensor, out: list) -> Tensor:
        out += [("b", x + 1), ("a", x + 2)]
        out.sort()
        return added(out)

    x, expected, got = torch.randn(3), [("c", torch.ones(3))], [("c", torch.ones(3))]
    assert same_bits(gradc.compile(function)(x, got), function(x, expected))
    assert [name for name, _ in got] == [name for name, _ in expected] == ["a", "b", "c"]


def test_arguments_by_name_and_their_order_at_each_call() -> None:
    def function(x: Tensor, **weights: Tensor) -> Tensor:
        return added([(name, weight * x) for name, weight in sorted(weights.items())])

    compiled, x, one, two = gradc.compile(function), torch.randn(3), torch.rand(3), torch.rand(3)
    for weights in ({"b": one, "a": two}, {"a": one, "b": two}, {"a": two, "c": one}, {"b": one, "a": two}):
        assert same_bits(compiled(x, **weights), function(x, **weights))
    assert not gradc.counters["uncompiled"]


def test_numbers_that_change_decide_anew() -> None:
    def function(x: Tensor, a: float, b: float) -> Tensor:
        return added(sorted([(a, x), (b, 2 * x)]))

    compiled, x = gradc.compile(function), torch.randn(3)
    for a, b in ((0.5, 1.5), (2.5, 1.5), (0.1, 0.2), (3, 2), (2, 3), (5.5, 4.5)):
        assert same_bits(compiled(x, a, b), function(x, a, b))


Pair = collections.namedtuple("Pair", "name value")


class Backwards(tuple):
    def __lt__(self, other) -> bool:
        return tuple.__gt__(self, other)


@pytest.mark.parametrize(
    "pairs",
    [
        lambda x: sorted([(1, x.sum()), (1, x.mean())]),  # the tensors decide
        lambda x: sorted([(float("nan"), x), (1.0, 2 * x)]),
        lambda x: sorted([Pair("b", x), Pair("a", 2 * x)]),
        lambda x: sorted([Backwards(("b", x)), Backwards(("a", 2 * x))]),
        lambda x: sorted([("b", x), ("a", 2 * x)], key=lambda pair: (pair[0], pair[1])),
    ],
)
def test_python_sorts_where_something_else_decides(pairs: Callable[[Tensor], list]) -> None:
    function: Function = lambda x: added(pairs(x))
    compiled, x = gradc.compile(function), torch.randn(5)
    for _ in range(2):
        assert same_bits(compiled(x), function(x))


@pytest.mark.parametrize("pairs", [[("a", 1), (2, 1)], [(1, 2), [1, 3]]], ids=str)
def test_pythons_error_where_no_order_is(pairs: list) -> None:
    def function(x: Tensor) -> Tensor:
        return added(sorted([type(pair)((*pair, x)) for pair in pairs]))

    for run in (function, gradc.compile(function)):
        with pytest.raises(TypeError, match="'<' not supported between instances"):
            run(torch.ones(2))


@pytest.mark.parametrize(
    "chosen",
    [
        lambda x: max({"b": x.sum(), "a": x.mean()}.items())[1],
        lambda x: min([(2, x), (1, 2 * x)])[1],
        lambda x: min([(2, x), (1, 2 * x)], key=lambda pair: pair[0])[1],
        lambda x: max([(1, x), (1, 2 * x)], key=lambda pair: pair[0])[1],  # of equals the first
        lambda x: max(x[None], x, key=lambda each: each.ndim),
        lambda x: max([], key=len, default=x),
        lambda x: x * max([1, 5, 3], key=lambda number: -number),
        lambda x: x * max((number for number in (1, 5, 3)), key=abs),
        lambda x: x * len(max({"a": 1, "bb": 4}, key={"a": 1, "bb": 4}.get)),
        lambda x: x * max(2, 3, key=None),
    ],
)
def test_extremes_by_what_decides(chosen: Callable[[Tensor], Tensor]) -> None:
    check(chosen, torch.randn(5))


def test_extremes_ask_the_key_item_by_item() -> None:
    def function(x: Tensor, seen: list) -> Tensor:
        def numbers():
            for number in (1, 3, 2):
                seen.append(("item", number))
                yield number

        return x * max(numbers(), key=lambda number: seen.append(("key", number)) or -number)

    x, expected, got = torch.randn(3), [], []
    assert same_bits(gradc.compile(function)(x, got), function(x, expected)) and got == expected


@pytest.mark.parametrize("extreme", [min, max])
def test_extremes_that_tensors_decide_and_of_nothing(extreme: Callable) -> None:
    x = torch.randn(4)
    check(lambda x: extreme(x.unbind(0), key=lambda each: each * 2), x, graphs=False)
    for run in (extreme, gradc.compile(lambda items, key: extreme(items, key=key))):
        with pytest.raises(ValueError, match="empty"):
            run([], key=abs)
