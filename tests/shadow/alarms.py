"""A plugin of pytest: the first call of whatever a test compiles is verified; the test fails if shadow mode tells a difference.

    python -m pytest -p tests.shadow.alarms --tally FILE tests/ROOM

An alarm is the error of a test's teardown; a test that fails by itself is another matter (Note [Shadow mode], "The sweep").
"""

from __future__ import annotations

import collections
import json
import os
import pathlib
from collections.abc import Iterator
from typing import Any

import pytest

os.environ["GRADC_VERIFY_CALLS"] = "1"  # read when gradc is imported, here and in processes that tests start

_tally: collections.Counter[str] = collections.Counter()
_told: list[str] = []


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--tally", type=pathlib.Path, help="where to write how much was verified, as JSON")


def pytest_configure() -> None:
    from gradc.shadow import verify

    tell, count = verify._Verifier._tell, verify.count

    def tell_and_note(self: Any, found: Any, consequence: str) -> None:
        _told.append(f"{self.name}: {found}")
        tell(self, found, consequence)

    def count_twice(kind: str, detail: str) -> None:
        _tally[detail] += 1
        count(kind, detail)

    verify._Verifier._tell = tell_and_note  # type: ignore[method-assign]
    verify.count = count_twice  # type: ignore[attr-defined]


@pytest.fixture(autouse=True)
def no_alarm(request: pytest.FixtureRequest) -> Iterator[None]:
    _told.clear()
    yield
    if _told and request.path.parent.name != "shadow":  # there, they are wanted
        pytest.fail("\n".join(["shadow mode tells a difference", *_told]), pytrace=False)


def pytest_sessionfinish(session: pytest.Session) -> None:
    if (path := session.config.getoption("--tally")) is not None:
        path.write_text(json.dumps(_tally))
