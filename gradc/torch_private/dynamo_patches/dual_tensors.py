"""A function that was first called in forward-mode AD: that call runs eagerly, and later ones are compiled all the same."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from typing import Any

import torch
from torch._dynamo.guards import GuardBuilder, install_guard
from torch._dynamo.source import GlobalStateSource
from torch._dynamo.variables.builder import VariableBuilder
from torch._guards import Guard
from torch.autograd import forward_ad

from gradc.torch_private.modes import is_forward_ad_active
from gradc.torch_private.patches import IsOurs, Method, Patch, Replace

_LEVEL = Guard(GlobalStateSource(), GuardBuilder.DUAL_LEVEL)


def take_dual_tensors(is_ours: IsOurs) -> Patch:
    """Let Dynamo trace what gets dual tensors, for while a dual level is open: gradc runs such graphs eagerly, which it counts.

    Outside of the level a graph of its own is made. A graph that was made there first is served inside, too.
    """

    def make(original: Method) -> Method:
        @functools.wraps(original)
        def wrap_tensor(self: Any, value: torch.Tensor) -> Any:
            if not is_forward_ad_active() or not is_ours(self.tx.output.compiler_fn):
                return original(self, value)
            install_guard(_LEVEL)
            with _seen_as_plain():
                return original(self, value)

        return wrap_tensor

    return Patch(
        "take_dual_tensors",
        "A function that was first called in forward-mode AD would run eagerly ever after; since 2.14 Dynamo even gives it up.",
        (Replace(VariableBuilder, "wrap_tensor", make),),
    )


@contextlib.contextmanager
def _seen_as_plain() -> Iterator[None]:
    """No tensor has a tangent to ``unpack_dual``. The level is one for all threads, and torch lets one thread alone have it."""
    level = forward_ad._current_level
    forward_ad._current_level = -1
    try:
        yield
    finally:
        forward_ad._current_level = level
