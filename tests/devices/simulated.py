"""A device that does not exist: torch's PrivateUse1, with memory that no code of the host can read.

    register: () -> None          from then on "simulated:0" and "simulated:1" are devices of this process

What it is, and how it tells who reads its memory: device.cpp, which is compiled here. To be called before anything runs
backward: the engine starts its threads, one for each device, at the first.
"""

from __future__ import annotations

import contextlib
import pathlib
import types
from collections.abc import Iterator

import torch
from torch.utils import cpp_extension

NAME = "simulated"
SOURCE = pathlib.Path(__file__).with_name("device.cpp")
NUM_DEVICES = 2
DEVICES = [f"{NAME}:{index}" for index in range(NUM_DEVICES)]


def register(folder: pathlib.Path) -> None:
    """Compile the device into ``folder``, unless it has been before, and register it."""
    folder.mkdir(parents=True, exist_ok=True)
    flags = ["-O0", "-g0"]
    cpp_extension.load("simulated_device", [str(SOURCE)], flags, build_directory=str(folder), is_python_module=False)
    torch.utils.rename_privateuse1_backend(NAME)
    torch.ops.simulated.register_graphs()
    torch._register_device_module(NAME, _module())
    torch.utils.generate_methods_for_privateuse1_backend(for_storage=True)


def _module() -> types.ModuleType:
    """What torch asks of ``torch.simulated``. Its random numbers are the CPU's, whose kernels it runs."""
    module = types.ModuleType(f"torch.{NAME}")
    module.__dict__.update(
        is_available=lambda: True,
        is_initialized=lambda: True,
        device_count=lambda: NUM_DEVICES,
        current_device=torch.ops.simulated.current_device,
        set_device=lambda device: torch.ops.simulated.set_device(torch.device(NAME, device).index),
        device=_on,
        synchronize=lambda device=None: None,
        get_amp_supported_dtype=lambda: [torch.bfloat16, torch.float16],
        get_rng_state=lambda device=None: torch.get_rng_state(),
        set_rng_state=lambda state, device=None: torch.set_rng_state(state),
        manual_seed=lambda seed: None,
        manual_seed_all=lambda seed: None,
        _is_in_bad_fork=lambda: False,
    )
    return module


@contextlib.contextmanager
def _on(device: int | torch.device) -> Iterator[None]:
    before = torch.ops.simulated.current_device()
    torch.ops.simulated.set_device(torch.device(NAME, device).index if isinstance(device, int) else device.index)
    try:
        yield
    finally:
        torch.ops.simulated.set_device(before)
