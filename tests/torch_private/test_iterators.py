"""Iterators look at the list as it is when they are asked: in a graph, behind it, and in the hands of the caller."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import pytest
import torch

import gradc


def ends_the_graph() -> None:
    torch._dynamo.graph_break()


def appended(x: torch.Tensor, items: list[int]) -> Any:
    iterator = iter(items)
    next(iterator)
    y = x + 1
    ends_the_graph()
    items.append(7)
    return y, list(iterator)


def made_inside(x: torch.Tensor, items: list[int]) -> Any:
    items = [1, 2, 3]
    iterator = iter(items)
    next(iterator)
    y = x + 1
    ends_the_graph()
    items.append(4)
    return y, list(iterator), items


def zipped(x: torch.Tensor, items: list[int]) -> Any:
    pairs = zip(items, items, strict=False)
    next(pairs)
    y = x + 1
    ends_the_graph()
    items.append(9)
    return y, list(pairs)


def mapped(x: torch.Tensor, items: list[int]) -> Any:
    texts = map(str, items)
    next(texts)
    y = x + 1
    ends_the_graph()
    items.append(9)
    return y, list(texts)


def at_its_end(x: torch.Tensor, items: list[int]) -> Any:
    iterator = iter(items)
    all_of_it = list(iterator)
    items.append(1)
    y = x + 1
    ends_the_graph()
    return y, all_of_it, list(iterator)


def backwards(x: torch.Tensor, items: list[int]) -> Any:
    iterator = reversed(items)
    next(iterator)
    items.append(5)
    y = x + 1
    ends_the_graph()
    items[0] = 7
    return y, list(iterator)


def backwards_over_what_is_gone(x: torch.Tensor, items: list[int]) -> Any:
    iterator = reversed(items)
    items.pop()
    items[0] = 9
    return x + 1, list(iterator)


def backwards_behind_what_is_gone(x: torch.Tensor, items: list[int]) -> Any:
    iterator = reversed(items)
    next(iterator)
    items.pop()
    items[0] = 9
    return x + next(iterator), list(iterator)


def sorted_under_it(x: torch.Tensor, items: list[int]) -> Any:
    iterator = iter(items)
    next(iterator)
    items.sort(reverse=True)
    return x + next(iterator), list(iterator)


def replaced_under_it(x: torch.Tensor, items: list[int]) -> Any:
    iterator = iter(items)
    next(iterator)
    items[:] = [7, 8]
    return x + next(iterator), list(iterator)


def cleared_in_a_loop(x: torch.Tensor, items: list[int]) -> Any:
    for item in items:
        x = x + item
        if item == 2:
            items.clear()
    return x


def grown_in_a_loop(x: torch.Tensor, items: list[int]) -> Any:
    for item in items:
        x = x + item
        ends_the_graph()
        if item < 4:
            items.append(item + 2)
    return x


def of_a_reversed_range(x: torch.Tensor, items: list[int]) -> Any:
    numbers = reversed(range(5))
    next(numbers)
    y = x + 1
    ends_the_graph()
    return y, list(numbers)


def of_a_range(x: torch.Tensor, items: list[int]) -> Any:
    numbers = iter(range(0, 7, 3))
    next(numbers)
    y = x + 1
    ends_the_graph()
    return y, list(numbers), list(numbers)


def of_a_deque(x: torch.Tensor, items: list[int]) -> Any:
    last = deque(items, 3)
    iterator = iter(last)
    y = x + next(iterator)
    ends_the_graph()
    return y, list(iterator), type(iterator).__name__


def of_a_deque_that_grows(x: torch.Tensor, items: list[int]) -> Any:
    last = deque(items)
    try:
        for item in last:
            x = x + item
            last.append(item)
    except RuntimeError as error:
        return x, str(error)


def of_a_deque_that_grew(x: torch.Tensor, items: list[int]) -> Any:
    last = deque(items, 3)
    iterator = iter(last)
    y = x + 1
    ends_the_graph()
    last.append(5)
    try:
        return y, list(iterator)
    except RuntimeError as error:
        return y, str(error)


def of_no_iterator(x: torch.Tensor, items: Any) -> Any:
    try:
        return x + next(items)
    except TypeError:
        return x + 10 * next(iter(items))


FUNCTIONS: list[Callable[..., Any]] = [
    *(appended, made_inside, zipped, mapped, at_its_end, sorted_under_it, replaced_under_it, cleared_in_a_loop),
    *(backwards, backwards_over_what_is_gone, backwards_behind_what_is_gone, grown_in_a_loop),
    *(of_a_reversed_range, of_a_range, of_a_deque, of_a_deque_that_grows, of_a_deque_that_grew, of_no_iterator),
]


@pytest.mark.parametrize("function", FUNCTIONS)
def test_gives_what_the_list_has(function: Callable[..., Any]) -> None:
    compiled = gradc.compile(function)
    for _ in range(2):
        items, eagers = [1, 2, 3], [1, 2, 3]
        assert str(compiled(torch.ones(2), items)) == str(function(torch.ones(2), eagers))
        assert items == eagers


@pytest.mark.parametrize("make", [iter, reversed])
def test_what_is_returned_is_over_the_callers_list(make: Callable[[Any], Any]) -> None:
    def function(x: torch.Tensor, items: list[int]) -> Any:
        return x + 1, make(items)

    items = [1, 2]
    _, iterator = gradc.compile(function)(torch.ones(2), items)
    items[0] = 5
    assert type(iterator) is type(make(items))
    assert list(iterator) == list(make(items))
