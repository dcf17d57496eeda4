"""Of a test that takes long each case comes once in some days, and with enough cases each element of its lists every day."""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from typing import Any

import pytest

from tests import drawn

TWO_DAYS = {"tests/test_drawn.py::test_case": 3}


@pytest.mark.parametrize("first", "abc")
@pytest.mark.parametrize(("second", "beside"), [(1, 5), (2, 6)])
@pytest.mark.parametrize("third", "xy")
def test_case(first: str, second: int, beside: int, third: str) -> None:
    """One of twelve, for the tests below."""


def test_unmarked() -> None:
    """As above: it is not known to take long, and comes every day."""


@pytest.fixture
def items(request: pytest.FixtureRequest) -> list[pytest.Item]:
    names = ("test_case", "test_unmarked")
    module = request.node.parent
    return [item for item in module.collect() if getattr(item, "originalname", item.name) in names]


def case(item: Any) -> tuple[Any, ...]:
    return tuple(item.callspec.params[name] for name in ("first", "second", "third"))


def test_each_case_comes_once_in_n_days(items: list[pytest.Item]) -> None:
    days = [drawn.select(items, day, TWO_DAYS) for day in (7, 8)]
    assert all("test_unmarked" in [item.name for item in kept] for kept, _ in days)
    cases = [[case(item) for item in kept if item.name != "test_unmarked"] for kept, _ in days]
    assert [len(each) for each in cases] == [6, 6]
    assert sorted(cases[0] + cases[1]) == sorted(itertools.product("abc", (1, 2), "xy"))


def test_each_pair_comes_every_day(items: list[pytest.Item]) -> None:
    kept = [case(item) for item in drawn.select(items, 7, TWO_DAYS)[0] if item.name != "test_unmarked"]
    assert {each[:2] for each in kept} == set(itertools.product("abc", (1, 2)))
    assert {each[1:] for each in kept} == set(itertools.product((1, 2), "xy"))


def test_numbers() -> None:
    assert drawn.numbers(range(7), 3, None) == list(range(7))
    assert [drawn.numbers(range(7), 3, day) for day in (0, 1, 2)] == [[0, 3, 6], [2, 5], [1, 4]]


def test_the_day() -> None:
    assert drawn.day_of("12") == 12 and drawn.day_of("today") > 739_000


def test_what_takes_long_comes_once_a_week_at_least(items: list[pytest.Item]) -> None:
    weeks = [item.name for day in range(7) for item in drawn.select(items, day, {"tests/test_drawn.py::test_case": 3_600})[0]]
    assert sorted(name for name in weeks if name != "test_unmarked") == sorted({*weeks} - {"test_unmarked"})
    assert len({*weeks}) == 13


def test_each_test_that_is_known_to_take_long_is_there() -> None:
    """Not one that was renamed, and would come every day."""
    root = drawn.DURATIONS.parent.parent
    for test in drawn.durations():
        path, _, name = test.partition("::")
        assert re.search(rf"^ *(def {name}\b|{name} = )", (root / path).read_text(), re.MULTILINE), (
            f"{test}: python -m tests.drawn"
        )


def test_durations_are_those_of_the_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    case = '<testcase classname="tests.a.test_b" name="{}" time="{}"/>'
    cases = [case.format(name, seconds) for name, seconds in (("test_c[1]", 2.4), ("test_c[2]", 2.0), ("test_d", 1.2))]
    (tmp_path / "all.xml").write_text(f"<testsuites><testsuite>{''.join(cases)}</testsuite></testsuites>")
    monkeypatch.setattr(drawn, "DURATIONS", tmp_path / "durations.txt")
    drawn.write(tmp_path / "all.xml")
    assert drawn.durations() == {"tests/a/test_b.py::test_c": 4}
