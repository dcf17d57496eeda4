"""What torch tells user code of the backward pass that runs: its node and its number, as if gradc ran no passes of its own.

unnumbered, take_for_own, note_own: tell gradc's own passes, which the patch ``tell_of_passes_as_in_eager`` leaves out
"""

from __future__ import annotations

import bisect
import contextlib
import functools
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from gradc.torch_private.patches import Patch, Replace

_own: list[int] = []  # the numbers of gradc's own passes, ascending: one for each backward that was compiled
_lock = threading.Lock()
number_in_torch = torch._C._current_graph_task_id


def shown(number: int) -> int:
    """The number that eager's pass would have; below -1 for a pass of gradc's own, and -1 outside of any."""
    position = bisect.bisect_left(_own, number)
    return -2 - position if position < len(_own) and _own[position] == number else number - position


def take_for_own(*_: Any) -> None:
    """The pass that runs in this thread is gradc's own."""
    note_own(number_in_torch())


def note_own(number: int) -> None:
    """The pass that torch counts so is gradc's own."""
    with _lock:
        if shown(number) >= 0:
            bisect.insort(_own, number)


@contextlib.contextmanager
def unnumbered(roots: Sequence[Any]) -> Iterator[None]:
    """The pass that is run from these nodes inside is gradc's own."""
    with contextlib.ExitStack() as stack:
        for root in roots:
            stack.callback(root.register_prehook(take_for_own).remove)
        yield


def tell_of_passes_as_in_eager(current_node: Callable[[Callable[[], Any]], Any]) -> Patch:
    """``current_node``: what torch says -> the node that runs; to torch's engine, a captured pass is one node of its own."""

    def make_node(original: Callable[[], Any]) -> Callable[[], Any]:
        return functools.wraps(original)(lambda: current_node(original))

    def make_number(original: Callable[[], int]) -> Callable[[], int]:
        return functools.wraps(original)(lambda: shown(original()))

    return Patch(
        "tell_of_passes_as_in_eager",
        "A hook is to meet the node that it hangs on, captured or not; and what gradc compiles is to count for no pass.",
        (
            Replace(torch._C, "_current_autograd_node", make_node),
            Replace(torch._C, "_current_graph_task_id", make_number),
        ),
    )
