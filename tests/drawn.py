"""What ``make test`` draws from long lists of cases: a part of them, each day another. ``make test-all`` runs them whole.

    one_in:  n -> a mark for a parametrized test: of its cases one in n; or, as ``pytestmark``, for the tests of a file
    select:  (items, day) -> (those of the day, the others)
    numbers: (numbers, n, day) -> those of the day

A case has a place in each of the lists that its test is parametrized by, and its test has one in its file. It comes on a day if
n divides the sum of these places and the day. So each case comes once in n days. Of two lists each element comes every day, if
the other list has n or more; of three lists each pair of elements, if the third has n or more. Without the mark n is 3 for a
test of LONG cases or more, 1 for others. ``--day`` says the day; without it everything runs.
"""

from __future__ import annotations

import collections
import datetime
from collections.abc import Iterable, Sequence

import pytest

LONG = 9
_ONE_IN = 3  # of a long list


def one_in(n: int) -> pytest.MarkDecorator:
    return pytest.mark.one_in(n)


def day_of(text: str) -> int:
    """``today`` or a number: days since the year 1."""
    return datetime.date.today().toordinal() if text == "today" else int(text)


def numbers(those: Iterable[int], n: int, day: int | None) -> list[int]:
    return [number for number in those if day is None or (number + day) % n == 0]


def select(items: Sequence[pytest.Item], day: int) -> tuple[list[pytest.Item], list[pytest.Item]]:
    lists: dict[tuple[str, int], dict[str, int]] = collections.defaultdict(dict)
    parts: tuple[list[pytest.Item], list[pytest.Item]] = ([], [])
    num_cases = collections.Counter(map(_test_of, items))
    for item in items:
        mark = item.get_closest_marker("one_in")
        n = mark.args[0] if mark else _ONE_IN if num_cases[_test_of(item)] >= LONG else 1
        comes = n == 1 or (sum(_places(item, lists)) + day) % n == 0
        parts[not comes].append(item)
    return parts


def _test_of(item: pytest.Item) -> str:
    return item.nodeid.partition("[")[0]


def _places(item: pytest.Item, lists: dict[tuple[str, int], dict[str, int]]) -> list[int]:
    """Of a case, in each list that its test or a fixture is parametrized by.

    ``lists``: (a test, the number of a list) -> id -> place, and (a file, 0) -> test -> place; it grows.
    """
    test = _test_of(item)
    ids = item.callspec._idlist if hasattr(item, "callspec") else ()
    known = [(lists[test, number], name) for number, name in enumerate(ids)] + [(lists[test.partition("::")[0], 0], test)]
    return [places.setdefault(name, len(places)) for places, name in known]
