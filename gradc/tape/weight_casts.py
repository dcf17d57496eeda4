"""Autocast's low-precision copy of a weight, taken from autocast's own cache.

    Cast:          (leaf, sizes) -> its copy       CacheError
    cached_cast:   (leaf, dtype) -> copy with ``grad_fn`` ToCopyBackward0
    weights_among: tensors -> for each whether autocast, as it is now, keeps its copy

While an autocast context is open, eager casts each weight once: all uses share one copy, and the gradients of those uses
add up in the low dtype before one cast back. Torch gives C++ a call for "cast through the cache" but Python none: without
the extension, an op that autocast casts for is started on the weight and stopped once the cast is done. See Note
[Weight casts].
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from gradc import native
from gradc.ambient import autocast_state
from gradc.errors import UnsupportedError
from gradc.torch_private.autograd import is_view
from gradc.torch_private.modes import autocast_nesting

_aten = torch.ops.aten


class CacheError(UnsupportedError):
    """Autocast's cache is not as it was when the region was traced. Raised before anything of the region has run."""


@dataclasses.dataclass(frozen=True)
class Cast:
    """How a region's call makes one of its primals of another: the copy in ``dtype``."""

    dtype: torch.dtype

    def __call__(self, leaf: torch.Tensor, sizes: Any) -> torch.Tensor:
        copy = cached_cast(leaf, self.dtype)
        if copy.dtype != self.dtype:
            raise CacheError("weight cast before", f"to {copy.dtype}, not {self.dtype}")
        return copy


def weights_among(tensors: Sequence[torch.Tensor]) -> tuple[bool, ...] | None:
    """See the module's docstring; None if it keeps none now."""
    if not (autocast_nesting() and torch.is_autocast_cache_enabled() and autocast_state().enabled):
        return None
    return tuple(t.requires_grad and t.is_leaf and not is_view(t) and t.dtype is torch.float32 for t in tensors)


class _Caught(Exception):
    pass


class _CatchCast(TorchDispatchMode):
    """Lets the cast through and stops at the next call, keeping its first argument."""

    caught: torch.Tensor | None = None

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if op is _aten._to_copy.default:
            return op(*args, **(kwargs or {}))
        self.caught = args[0]
        raise _Caught


def cached_cast(leaf: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The copy of ``leaf`` that eager code under autocast to ``dtype`` would use.

    In another dtype, if it was first cast to that in the autocast context that is open.
    """
    if native.is_built():
        return native.extension.cached_cast(leaf, dtype)
    device = leaf.device.type
    with torch.autocast(device, dtype), _CatchCast() as mode:
        with contextlib.suppress(_Caught):
            torch.bmm(leaf, leaf)
    caught = mode.caught
    assert caught is not None and caught.shape == leaf.shape
    return caught
