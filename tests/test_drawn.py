"""Of a long list of cases each comes once in n days, and each element of its lists, or each pair, every day."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from tests import drawn
from tests.drawn import one_in


@one_in(2)
@pytest.mark.parametrize("first", "abc")
@pytest.mark.parametrize(("second", "beside"), [(1, 5), (2, 6)])
@pytest.mark.parametrize("third", "xy")
def test_case(first: str, second: int, beside: int, third: str) -> None:
    """One of twelve, for the tests below."""


def test_unmarked() -> None:
    """As above: comes every day."""


@pytest.fixture
def items(request: pytest.FixtureRequest) -> list[pytest.Item]:
    names = ("test_case", "test_unmarked")
    module = request.node.parent
    return [item for item in module.collect() if getattr(item, "originalname", item.name) in names]


def case(item: Any) -> tuple[Any, ...]:
    return tuple(item.callspec.params[name] for name in ("first", "second", "third"))


def test_each_case_comes_once_in_n_days(items: list[pytest.Item]) -> None:
    days = [drawn.select(items, day) for day in (7, 8)]
    assert all("test_unmarked" in [item.name for item in kept] for kept, _ in days)
    cases = [[case(item) for item in kept if item.name != "test_unmarked"] for kept, _ in days]
    assert [len(each) for each in cases] == [6, 6]
    assert sorted(cases[0] + cases[1]) == sorted(itertools.product("abc", (1, 2), "xy"))


def test_each_pair_comes_every_day(items: list[pytest.Item]) -> None:
    kept = [case(item) for item in drawn.select(items, 7)[0] if item.name != "test_unmarked"]
    assert {each[:2] for each in kept} == set(itertools.product("abc", (1, 2)))
    assert {each[1:] for each in kept} == set(itertools.product((1, 2), "xy"))


def test_numbers() -> None:
    assert drawn.numbers(range(7), 3, None) == list(range(7))
    assert [drawn.numbers(range(7), 3, day) for day in (0, 1, 2)] == [[0, 3, 6], [2, 5], [1, 4]]


def test_the_day() -> None:
    assert drawn.day_of("12") == 12 and drawn.day_of("today") > 739_000
