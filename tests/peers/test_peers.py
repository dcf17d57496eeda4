"""A part of `make peers` that takes seconds: every fourth behaviour, another fourth for each of the three ways."""

import pytest

from tests.peers.behaviours import BEHAVIOURS, WAYS
from tests.peers.registry import Behaviour

PART = [(one, way) for number, one in enumerate(BEHAVIOURS) for offset, way in enumerate(WAYS) if number % 4 == offset]


@pytest.mark.parametrize(("behaviour", "way"), PART, ids=[f"{one.name}-{way.name}" for one, way in PART])
def test_behaviour(behaviour: Behaviour, way) -> None:
    report = behaviour.run(way)
    assert not report.differences, str(report)


def test_names_are_given_once() -> None:
    assert len({one.name for one in BEHAVIOURS}) == len(BEHAVIOURS) > 80
