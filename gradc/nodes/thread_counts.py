"""What tracing counts of autograd nodes, other threads count, too, so that the engine runs nodes in eager's order.

    in_step:     frame -> context around its compilation          note_device: device -> None

Each thread counts the nodes that it makes, and the engine runs those with higher numbers first. Backward of other devices
than the CPU runs in threads of theirs. A compilation makes nodes that eager does not make, in the thread that compiles. So
the threads of devices count as many, and so do the nodes that there were: then each stands to any other as in eager.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils import _pytree as pytree

from gradc import native
from gradc.ambient import unsupported_mode
from gradc.torch_private.autograd import engine_grad, is_inside_backward, next_sequence_nr

_devices: set[torch.device] = set()
_here = threading.local()


def note_device(device: torch.device) -> None:
    """Tell that nodes of ``device`` are run by a thread of its own."""
    _devices.add(device)


@contextlib.contextmanager
def in_step(frame: Any) -> Iterator[None]:
    """See the module's docstring. Not inside of a backward pass, where it is not known which thread waits for which."""
    if getattr(_here, "is_counting", False) or is_inside_backward():
        yield
        return
    start, _here.is_counting = next_sequence_nr(), True
    try:
        yield
    finally:
        _here.is_counting = False
        if _devices and (number := next_sequence_nr() - start) and not unsupported_mode():
            _count(number, frame.f_locals)


def _count(number: int, values: Any) -> None:
    native.extension.move_on([value for value in pytree.tree_leaves(values) if isinstance(value, torch.Tensor)], number)
    for device in _devices:
        native.extension.call_elsewhere(functools.partial(_pass_through, device, number))


class _Count(torch.autograd.Function):
    """Its backward makes its thread count."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, number: int) -> torch.Tensor:
        ctx.number = number
        return x.detach()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        native.extension.count_nodes_to(next_sequence_nr() + ctx.number)
        return None, None


def _pass_through(device: torch.device, number: int) -> None:
    """Have the thread of ``device`` count ``number`` nodes. No kernel runs there."""
    with torch.inference_mode(False), torch.enable_grad():
        x = torch.empty((), device=device, requires_grad=True)
        y = _Count.apply(x, number)
        engine_grad([(y.grad_fn, 0)], [y.grad_fn.next_functions[0]], [torch.empty_like(x)], create_graph=False)
