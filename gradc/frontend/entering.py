"""Compiled functions are called at once: where nothing unusual is in force, not by way of torch's wrapper.

    quickly: what torch.compile returned -> the same, to be called often
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gradc import native
from gradc.torch_private.entering import TOLD_SHORTLY, is_anything_unusual, taken_apart, told_shortly


def quickly(compiled: Callable[..., Any]) -> Callable[..., Any]:
    """See the module's docstring. ``compiled`` itself, where it has another form than expected, or the extension is missing."""
    parts = taken_apart(compiled) if native.is_built() else None
    if parts is None:
        return compiled
    entered = native.extension.entered(parts)

    def call(*args: Any, **kwargs: Any) -> Any:
        if is_anything_unusual():
            return compiled(*args, **kwargs)
        try:
            return entered(*args, **kwargs)
        except TOLD_SHORTLY as error:
            raise told_shortly(error) from error.__cause__

    return call
