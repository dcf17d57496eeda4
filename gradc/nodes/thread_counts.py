"""What threads count of autograd nodes, so that the engine runs nodes in eager's order where several threads make them.

    in_step:           frame -> context around its compilation          note_device: device -> None
    counted_elsewhere: outputs -> context around a pass from them that a compilation makes
    counted_ahead:     device, or None -> context around one that is traced; gives () -> how many nodes the device's thread made

Each thread counts the nodes that it makes, and the engine runs those with higher numbers first. Backward of other devices
than the CPU runs in threads of theirs. A compilation makes nodes that eager does not make, in the thread that compiles, and
in those. So all threads count as many, and so do the nodes that there were: then each stands to any other as in eager.

What a pass under create_graph makes in a device's thread is traced as if that thread had counted further than the one that
calls, as it has after a few steps. A call of what was traced asks whether that holds (nodes/csrc/thread_counts.h); until it
does, eager runs the call.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from gradc import native
from gradc.ambient import unsupported_mode
from gradc.torch_private.autograd import is_inside_backward, next_sequence_nr
from gradc.torch_private.backward_passes import note_own

_FURTHER = 1 << 20  # than any function makes nodes

_devices: set[torch.device] = set()
_here = threading.local()


def note_device(device: torch.device) -> None:
    """Tell that nodes of ``device`` are run by a thread of its own."""
    if not native.is_built():  # live nodes have no numbers of eager's then
        return
    _devices.add(device)
    native.extension.tell_of_counting_passes(note_own)


@contextlib.contextmanager
def in_step(frame: Any) -> Iterator[None]:
    """See the module's docstring. Not inside of a backward pass, where it is not known which thread waits for which."""
    if _is_counting() or is_inside_backward():
        yield
        return
    start, _here.counted = next_sequence_nr(), {}
    try:
        yield
    finally:
        counted, _here.counted = _here.counted, None
        number = max(next_sequence_nr() - start, *counted.values(), 0)
        if _devices and number and not unsupported_mode():
            native.extension.count_nodes_to(start + number)
            native.extension.move_on(_tensors(frame.f_locals), number)
            for device in _devices:
                native.extension.count_in_thread_of(device, number - counted.get(device, 0))


def counted_elsewhere(outputs: Sequence[torch.Tensor]) -> contextlib.AbstractContextManager[None]:
    """See the module's docstring."""
    return _counted({output.device for output in outputs if output.device.type != "cpu"} if native.is_built() else set())


@contextlib.contextmanager
def counted_ahead(device: torch.device | None) -> Iterator[Callable[[], int]]:
    """See the module's docstring. The number is there behind the context."""
    if device is None or not native.is_built():
        yield lambda: 0
        return
    numbers, end = list[int](), next_sequence_nr() + _FURTHER
    with _counted({device}):
        begin = native.extension.count_in_thread_of(device, max(0, end - _number_in(device)))
        yield lambda: numbers[0]
        numbers.append(_number_in(device) - begin)


@contextlib.contextmanager
def _counted(devices: set[torch.device]) -> Iterator[None]:
    """What the threads of devices count inside, they count for what is compiled."""
    for device in devices:
        note_device(device)
    first = {device: _number_in(device) for device in devices}
    try:
        yield
    finally:
        for device, number in first.items():
            if _is_counting():
                _here.counted[device] = _here.counted.get(device, 0) + _number_in(device) - number


def _is_counting() -> bool:
    return getattr(_here, "counted", None) is not None


def _tensors(values: Any) -> list[torch.Tensor]:
    return [value for value in pytree.tree_leaves(values) if isinstance(value, torch.Tensor)]


def _number_in(device: torch.device) -> int:
    return native.extension.count_in_thread_of(device, 0)
