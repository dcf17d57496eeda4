"""A part of `make peers` that takes seconds: every eighth behaviour, another eighth for each of the three ways."""

import pytest
import torch

from tests.peers.behaviours import BEHAVIOURS, WAYS
from tests.peers.custom_ops import custom_ops
from tests.peers.gradients import gradients
from tests.peers.optimizers import optimizers
from tests.peers.refused import refused
from tests.peers.registry import Behaviour
from tests.peers.transforms import transforms
from tests.peers.user_ops import parts, pick, scaled, times

PART = [(one, way) for number, one in enumerate(BEHAVIOURS) for offset, way in enumerate(WAYS) if number % 8 == offset]


@pytest.mark.parametrize(("behaviour", "way"), PART, ids=[f"{one.name}-{way.name}" for one, way in PART])
def test_behaviour(behaviour: Behaviour, way) -> None:
    report = behaviour.run(way)
    assert not report.differences, str(report)


def test_names_are_given_once() -> None:
    assert len({one.name for one in BEHAVIOURS}) == len(BEHAVIOURS) > 80


@pytest.mark.parametrize(
    ("suite", "only", "at_least"),
    [
        (custom_ops, "Sort", 4),
        (transforms, "bmm", 2),
        (optimizers, "SGD 1 ", 3),
        (optimizers, "Rprop 0 ", 2),
        (refused, "narrow", 3),
        (gradients, "addmv", 2),
    ],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_a_bit_of_each_suite(suite, only, at_least) -> None:
    verdicts = list(suite(only))
    assert len(verdicts) >= at_least
    assert not [str(verdict) for verdict in verdicts if verdict.differences]


@pytest.mark.parametrize("op, args", [(scaled, ()), (parts, ([1, 2],)), (pick, (torch.ones(3, 2),)), (times, (3,))], ids=str)
def test_the_ops_here_are_what_torch_takes_for_sound(op, args) -> None:
    found = torch.library.opcheck(op, (torch.randn(3, 2, requires_grad=True), *args))
    assert set(found.values()) == {"SUCCESS"}
