"""What a GPU is asked where times and memory are told. Beside none, the host's clock answers.

    clock:  () -> seconds, once all that was asked of it is done
    timed:  (a call, the tensors that it is given) -> its result, and the seconds that it took where they are
    peak:   context -> the most that tensors took of a GPU inside

A GPU does its work after the call that asks for it has returned. So a time is read when it is done, and that of one call is the
GPU's own: between two events, with the GPU held until all three were asked for. Without that the launch would be timed, which
takes the host longer than most kernels take the GPU.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor

from gradc.torch_private.cuda import hold


def clock() -> float:
    """The time in seconds, once all that was asked of an accelerator is done."""
    if _is_there():
        torch.accelerator.synchronize()
    return time.perf_counter()


@functools.cache
def _is_there() -> bool:
    return torch.accelerator.is_available()


def timed(call: Callable[[], Any], given: Iterable[Tensor]) -> tuple[Any, float]:
    """``given`` says where the call runs: on the GPU of the first tensor that is on one, else on the host."""
    device = next((tensor.device for tensor in given if tensor.device.type == "cuda"), None)
    if device is None:
        start = clock()
        result = call()
        return result, clock() - start
    with torch.cuda.device(device):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        torch.cuda.synchronize()
        hold()
        begin.record()
        result = call()
        end.record()
        end.synchronize()
        return result, begin.elapsed_time(end) / 1e3


@dataclasses.dataclass
class Peak:
    """In bytes, beyond what was taken before; None where there is no GPU."""

    num_bytes: int | None = None


@contextlib.contextmanager
def peak() -> Iterator[Peak]:
    """By the allocator of the current GPU; what CUDA graphs keep for themselves is not in it, nor what others hold."""
    found = Peak()
    if not torch.cuda.is_initialized():
        yield found
        return
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    yield found
    torch.cuda.synchronize()
    found.num_bytes = torch.cuda.max_memory_allocated() - before
