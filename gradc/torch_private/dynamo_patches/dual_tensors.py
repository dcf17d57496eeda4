"""A function that was first called in forward-mode AD: that call runs eagerly, and later ones are compiled all the same."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch._dynamo.guards import GuardBuilder, install_guard
from torch._dynamo.source import GlobalStateSource
from torch._dynamo.variables.builder import VariableBuilder
from torch._guards import Guard
from torch.autograd import forward_ad

from gradc.torch_private.modes import is_forward_ad_active
from gradc.torch_private.patches import Method, Patch
from gradc.torch_private.weaver import around

_LEVEL = Guard(GlobalStateSource(), GuardBuilder.DUAL_LEVEL)


def take_dual_tensors() -> Patch:
    """Let Dynamo trace what gets dual tensors, for while a dual level is open: gradc runs such graphs eagerly, which it counts.

    Outside of the level a graph of its own is made. A graph that was made there first is served inside, too.
    """
    return Patch(
        "take_dual_tensors",
        "A function that was first called in forward-mode AD would run eagerly ever after; since 2.14 Dynamo even gives it up.",
        (around(VariableBuilder, "wrap_tensor", _wrap_tensor),),
    )


def _wrap_tensor(original: Method, self: Any, value: torch.Tensor) -> Any:
    if not is_forward_ad_active():
        return original(self, value)
    install_guard(_LEVEL)
    with _seen_as_plain():
        return original(self, value)


@contextlib.contextmanager
def _seen_as_plain() -> Iterator[None]:
    """No tensor has a tangent to ``unpack_dual``. The level is one for all threads, and torch lets one thread alone have it."""
    level = forward_ad._current_level
    forward_ad._current_level = -1
    try:
        yield
    finally:
        forward_ad._current_level = level
