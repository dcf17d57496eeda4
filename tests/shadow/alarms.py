"""A plugin of pytest: the first call of whatever a test compiles is verified; the test fails if shadow mode tells a difference.

    python -m pytest -p tests.shadow.alarms --tally FILE tests/ROOM

An alarm is the error of a test's teardown; a test that fails by itself is another matter (Note [Shadow mode], "The sweep").
"""

from __future__ import annotations

import json
import os
import pathlib
from collections.abc import Iterator

import pytest

from tests.shadow.told import listen, tally, told

os.environ["GRADC_VERIFY_CALLS"] = "1"  # read when gradc is imported, here and in processes that tests start


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--tally", type=pathlib.Path, help="where to write how much was verified, as JSON")


def pytest_configure() -> None:
    listen()


@pytest.fixture(autouse=True)
def no_alarm(request: pytest.FixtureRequest) -> Iterator[None]:
    told.clear()
    yield
    if told and request.path.parent.name != "shadow":  # there, they are wanted
        pytest.fail("\n".join(["shadow mode tells a difference", *told]), pytrace=False)


def pytest_sessionfinish(session: pytest.Session) -> None:
    if (path := session.config.getoption("--tally")) is not None:
        path.write_text(json.dumps(tally))
