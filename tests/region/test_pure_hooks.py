"""Which saved-tensors hooks a region may be compiled around: those that only make something of the tensor."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from gradc.region.pure_hooks import is_pure

layer = 0
events: list[Any] = []
weight = torch.ones(2)
half = torch.bfloat16


def helper(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().clone()


def noting(tensor: torch.Tensor) -> torch.Tensor:
    events.append(tensor)
    return tensor


def with_list(tensor: torch.Tensor, seen: list[Any] = []) -> Any:  # noqa: B006 - that is the case
    return tensor, seen


def with_global(tensor: torch.Tensor) -> torch.Tensor:
    global layer
    layer += 1
    return tensor


PURE: list[Callable[..., Any]] = [
    lambda t: t,
    lambda t: (t.dtype, t.double() * 1.25),
    lambda kept: kept[1].to(kept[0]),
    lambda t: t.detach().numpy().copy() if t.is_floating_point() else t,
    lambda kept: kept if isinstance(kept, torch.Tensor) else torch.from_numpy(kept),
    lambda t: t if isinstance(t, torch.nn.Parameter) else t.to(half),
    lambda t: np.copy(t.detach()),
    lambda t: helper(t) + 1,
    torch.Tensor.clone,
    torch.from_numpy,
    torch.autograd.graph.save_on_cpu().pack_hook,
]
NOT_PURE: list[Callable[..., Any]] = [
    lambda t: (layer, t),
    lambda t: events,
    lambda t: t.grad_fn,
    lambda t: t._version,
    lambda t: t._base,
    lambda t: t.data_ptr(),
    lambda t: t is weight,
    lambda t: t.is_leaf,
    lambda t: t @ t,
    lambda t: t * torch.rand_like(t),
    lambda t: print(t),
    lambda t: setattr(t, "name", 1),
    lambda t: lambda: t,
    noting,
    with_list,
    with_global,
    events.append,
    torch.Tensor.zero_,
    torch.Generator().manual_seed,
]


@pytest.mark.parametrize("hook", PURE)
def test_pure(hook: Callable[..., Any]) -> None:
    assert is_pure(hook)


@pytest.mark.parametrize("hook", NOT_PURE)
def test_not_pure(hook: Callable[..., Any]) -> None:
    assert not is_pure(hook)
