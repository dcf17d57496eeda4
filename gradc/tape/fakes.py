"""Fake tensors that stand for a region's inputs.

    fake_primal: (tensor, fake mode) -> a fake tensor like it: layout, lazy bits, whether it is a leaf or a view
    strided:     (layout, lazy bits) -> a tensor of its own
    lazy_view:   (tensor, is_conj, is_neg) -> its lazy conjugate or negative
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from gradc.errors import UnsupportedError
from gradc.ir.metadata import symbolic_number
from gradc.ir.values import Sym
from gradc.torch_private.autograd import is_view
from gradc.torch_private.fakes import FakeTensorMode


def fake_primal(value: torch.Tensor, mode: FakeTensorMode, sizes: Callable[[Any], Any] = lambda number: number) -> torch.Tensor:
    """A fake tensor of ``mode`` like ``value``: a leaf where it is one, with its layout and whether it needs a gradient.

    Leafness is kept because autocast keeps its copies of leaves only; a base that needs a gradient because views of it made
    without recording then say that they do. ``sizes`` gives the number to use for each that is symbolic. Called outside of
    ``mode``: a fake ``value`` of another mode may have to make its history again to tell whether it is a leaf.
    """
    if value.layout is not torch.strided:
        raise UnsupportedError("input that is not strided", str(value.layout))
    size, stride = ([_plain(number, sizes) for number in numbers] for numbers in (value.size(), value.stride()))
    offset = _plain(value.storage_offset(), sizes)
    is_leaf = value.is_leaf
    with mode, torch.enable_grad():
        if isinstance(offset, int) and offset == 0:
            fake = strided(size, stride, value.dtype, value.device, value.is_conj(), value.is_neg())
        else:
            storage = torch.empty(offset + _extent(size, stride), dtype=value.dtype, device=value.device)
            if is_view(value) and not is_leaf:
                view = storage.requires_grad_().as_strided(size, stride, offset)
                return lazy_view(view, value.is_conj(), value.is_neg())
            fake = lazy_view(storage.as_strided(size, stride, offset), value.is_conj(), value.is_neg())
            fake = fake if is_view(value) else fake.detach()
        if not value.requires_grad:
            return fake
        fake.requires_grad_()
        if is_leaf:
            return fake
        return fake.view_as(fake) if is_view(value) else _Made.apply(fake)


class _Made(torch.autograd.Function):
    """Makes a tensor that is neither a leaf nor a view, with the layout of its argument."""

    @staticmethod
    def forward(ctx: Any, leaf: torch.Tensor) -> torch.Tensor:
        ctx.set_materialize_grads(False)
        return leaf.detach()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor | None) -> None:
        return None


def strided(
    size: Sequence[Any], stride: Sequence[Any], dtype: torch.dtype, device: torch.device, is_conj: bool, is_neg: bool
) -> torch.Tensor:
    """A tensor of this layout that is no view, with the lazy bits."""
    tensor = torch.empty_strided(size, stride, dtype=dtype, device=device)
    return lazy_view(tensor, is_conj, is_neg).detach() if is_conj or is_neg else tensor


def lazy_view(tensor: torch.Tensor, is_conj: bool, is_neg: bool) -> torch.Tensor:
    """The lazy conjugate of ``tensor``, or its lazy negative, or both; ``tensor`` itself for neither."""
    tensor = tensor.conj() if is_conj else tensor
    return torch._neg_view(tensor) if is_neg else tensor


def _plain(number: Any, sizes: Callable[[Any], Any]) -> Any:
    if not isinstance(number, torch.SymInt):
        return number
    found = sizes(symbolic_number(number))
    return number if isinstance(found, Sym) else found


def _extent(size: Sequence[Any], stride: Sequence[Any]) -> Any:
    """How many elements of storage a tensor of this layout spans from its offset on."""
    extent: Any = 1
    for length, step in zip(size, stride, strict=True):
        extent = extent + (length - 1) * step
    return extent
