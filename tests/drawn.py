"""What ``make test`` draws of the tests that take long: a part of their cases, each day another. ``make test-all`` runs all.

    select:  (items, day) -> (those of the day, the others)
    numbers: (numbers, n, day) -> those of the day

``durations.txt`` holds the seconds of each test that takes more than a day's share, all of its cases together: such a test has
each case once in as many days as make that share of it, but at least once a week. A test that is not in it runs every day.

A case has a place in each of the lists that its test is parametrized by, and its test has one in its file. It comes on a day if
the number of days divides the sum of these places and the day. ``--day`` says the day; without it everything runs.

    python -m pytest -n 2 --junitxml=all.xml && python -m tests.drawn all.xml      writes durations.txt anew
"""

from __future__ import annotations

import collections
import datetime
import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from xml.etree import ElementTree

import pytest

DURATIONS = Path(__file__).with_name("durations.txt")
_SHARE = 1.5  # seconds of a test, in a day
_WEEK = 7


def day_of(text: str) -> int:
    """``today`` or a number: days since the year 1."""
    return datetime.date.today().toordinal() if text == "today" else int(text)


def numbers(those: Iterable[int], n: int, day: int | None) -> list[int]:
    return [number for number in those if day is None or (number + day) % n == 0]


def durations() -> dict[str, int]:
    """test -> seconds."""
    rows = (line.split() for line in DURATIONS.read_text().splitlines())
    return {test: int(seconds) for seconds, test in rows}


def select(items: Sequence[pytest.Item], day: int, seconds: Mapping[str, int]) -> tuple[list[pytest.Item], list[pytest.Item]]:
    lists: dict[tuple[str, int], dict[str, int]] = collections.defaultdict(dict)
    parts: tuple[list[pytest.Item], list[pytest.Item]] = ([], [])
    for item in items:
        num_days = _num_days(seconds.get(_test_of(item), 0))
        comes = num_days == 1 or (sum(_places(item, lists)) + day) % num_days == 0
        parts[not comes].append(item)
    return parts


def _num_days(seconds: float) -> int:
    return max(1, min(_WEEK, math.ceil(seconds / _SHARE)))


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


def write(junit: Path) -> None:
    """``junit``: pytest's report of a run of everything."""
    seconds: dict[str, float] = collections.defaultdict(float)
    for case in ElementTree.parse(junit).iter("testcase"):
        path = (case.get("classname") or "").replace(".", "/")
        seconds[f"{path}.py::{(case.get('name') or '').partition('[')[0]}"] += float(case.get("time") or 0)
    rows = sorted((test, round(each)) for test, each in seconds.items() if _num_days(round(each)) > 1)
    DURATIONS.write_text("".join(f"{each:4d} {test}\n" for test, each in rows))


if __name__ == "__main__":
    write(Path(sys.argv[1]))
