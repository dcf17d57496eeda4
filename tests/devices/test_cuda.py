"""The programs of tests.devices on a GPU, where there is one: as in eager, and eagerly only where that is foreseen."""

from __future__ import annotations

import pytest
import torch

from tests.devices.outcomes import faults, on
from tests.devices.registry import load

if not torch.cuda.is_available():
    pytest.skip("there is no GPU that torch can use", allow_module_level=True)
PROGRAMS = load()


@pytest.mark.parametrize("name", PROGRAMS)
def test_as_eager(name: str) -> None:
    program = PROGRAMS[name]
    if program.num_devices > torch.cuda.device_count():
        pytest.skip(f"takes {program.num_devices} GPUs")
    assert faults(program, on(torch.device("cuda", 0), f"gradc:{name}")) == []


@pytest.mark.parametrize("ahead", [-100_000, 0, 10])
@pytest.mark.parametrize("name", [name for name in PROGRAMS if PROGRAMS[name].step.__module__ == "tests.devices.order"])
def test_the_order_of_two_threads(name: str, ahead: int) -> None:
    assert faults(PROGRAMS[name], on(torch.device("cuda", 0), f"gradc:{name}@{ahead}")) == []


def test_captured_backward() -> None:
    outcome = on(torch.device("cuda", 0), "gradc_captured:mlp")
    assert outcome.differences == ()
    assert list(outcome.fallbacks) == ["compiled autograd: device other than the CPU"]
