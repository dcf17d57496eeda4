"""Programs for any device: each makes its tensors there, trains, and gives back all that can be looked at.

@program()
def mlp(compile, device): ...          a step of tests.oracle, whose one input is the device
load: () -> {name: Program}
"""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Callable
from typing import Any

import torch

from tests.compilers import Compiler

Device = torch.device
HIGHER_ORDER = "gradient of a gradient"  # the first words of why it runs eagerly elsewhere than on the CPU


@dataclasses.dataclass(frozen=True)
class Program:
    """One program.

    Attributes:
        step: (compile, device) -> anything.
        fallbacks: the reasons for which gradc may run a part eagerly here, by their first words.
        num_devices: how many devices of the type it takes.
    """

    step: Callable[[Compiler, Device], Any]
    fallbacks: tuple[str, ...] = ()
    num_devices: int = 1


PROGRAMS: dict[str, Program] = {}


def program(*fallbacks: str, num_devices: int = 1) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register a program under its function's name."""

    def register(step: Callable[..., Any]) -> Callable[..., Any]:
        PROGRAMS[step.__name__] = Program(step, fallbacks, num_devices)
        return step

    return register


def leaf(device: Device, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """A leaf on ``device`` with the numbers that the CPU's generator has next: the same ones on any device."""
    return torch.randn(shape, dtype=dtype).to(device).requires_grad_()


def constant(device: Device, *shape: int) -> torch.Tensor:
    return leaf(device, *shape).detach()


def other(device: Device) -> Device:
    """Another device of the same type."""
    return torch.device(device.type, (device.index or 0) + 1)


def load() -> dict[str, Program]:
    """All programs, by name."""
    for module in ("computations", "order", "surroundings", "switches"):
        importlib.import_module(f"tests.devices.{module}")
    return PROGRAMS
