"""What a call may change of its thread and process: generators of random numbers, grad mode, autocast, default dtype.

settings: () -> {name: value}        put_back: what ``settings`` returned -> None
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from typing import Any

import torch

from gradc.bits import same_bits
from gradc.torch_private.modes import autocast_devices

Access = tuple[Callable[[], Any], Callable[[Any], Any]]

_SETTINGS: dict[str, Access] = {
    "torch's random numbers": (torch.get_rng_state, torch.set_rng_state),
    "Python's random numbers": (random.getstate, random.setstate),
    "grad mode": (torch.is_grad_enabled, torch.set_grad_enabled),
    "default dtype": (torch.get_default_dtype, torch.set_default_dtype),
    "deterministic mode": (torch.are_deterministic_algorithms_enabled, torch.use_deterministic_algorithms),
    "matmul precision": (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
    "mkldnn": (lambda: torch.backends.mkldnn.enabled, lambda value: setattr(torch.backends.mkldnn, "enabled", value)),
    "number of threads": (torch.get_num_threads, torch.set_num_threads),
}


def _of_device(device: str) -> dict[str, Access]:
    return {
        f"autocast on {device}": (
            lambda: torch.is_autocast_enabled(device),
            lambda value: torch.set_autocast_enabled(device, value),
        ),
        f"autocast's dtype on {device}": (
            lambda: torch.get_autocast_dtype(device),
            lambda value: torch.set_autocast_dtype(device, value),
        ),
    }


def _of_numpy() -> dict[str, Access]:
    numpy = sys.modules.get("numpy")
    return {} if numpy is None else {"NumPy's random numbers": (numpy.random.get_state, numpy.random.set_state)}


def _of_cuda() -> dict[str, Access]:
    if not torch.cuda.is_initialized():
        return {}
    return {"CUDA's random numbers": (torch.cuda.get_rng_state_all, torch.cuda.set_rng_state_all)}


def _all() -> dict[str, Access]:
    found = {**_SETTINGS, **_of_numpy(), **_of_cuda()}
    for device in autocast_devices():
        found |= _of_device(device)
    return found


def settings() -> dict[str, Any]:
    return {name: read() for name, (read, _) in _all().items()}


def put_back(values: dict[str, Any]) -> None:
    for name, (read, write) in _all().items():
        if name in values and not is_same(read(), values[name]):
            write(values[name])


def is_same(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor):
        return same_bits(a, b)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(is_same, a, b))
    return bool((a == b).all()) if hasattr(a, "all") else bool(a == b)
