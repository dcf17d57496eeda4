"""The sequence numbers of autograd nodes, which each thread counts for itself: those of a device's thread beside this one's.

    in_its_thread: (device, function) -> None
    put_ahead:     (devices, number) -> None      the next node of their threads has so much higher a number than the next here

The engine runs nodes of higher numbers first, and backward of a device runs in the device's thread. So at second order
eager's own last bits follow from how many nodes both threads had made before. Far ahead, nodes are in the order in which they
were made, as on the CPU.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from gradc import native
from gradc.torch_private.autograd import next_sequence_nr

FAR_AHEAD = 100_000


class _InItsThread(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, call: Callable[[], None]) -> torch.Tensor:
        ctx.call = call
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        ctx.call()
        return grad, None


def in_its_thread(device: torch.device, call: Callable[[], None]) -> None:
    """Call ``call`` in the thread of the engine that runs the nodes of ``device``."""
    _InItsThread.apply(torch.ones((), device=device, requires_grad=True), call).backward()


def put_ahead(devices: Sequence[torch.device], number: int = FAR_AHEAD) -> None:
    """See the module's docstring. Numbers only grow: of two threads the one that is behind counts on."""
    found: list[int] = []
    for device in devices:
        in_its_thread(device, lambda: found.append(next_sequence_nr()))
    start = max(next_sequence_nr() + 2 * len(devices), *(theirs - number for theirs in found))
    for device in devices:
        in_its_thread(device, lambda: native.extension.count_nodes_to(start + number))
    native.extension.count_nodes_to(start)
