"""The gradients of the larger or smaller of two tensors, as torch 2.14 makes them: where both are equal, each gets half.

    TIES: name of a node -> function: (node, incoming gradients, what its C++ code made on fake tensors) -> gradients

The C++ code ends with zeros for what was not chosen: on real tensors written in place, into a result that keeps the layout of
the operands; on what is like a subclass, as fake tensors are, with a copy that is contiguous. In 2.13 it was right on both.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from gradc.errors import UnsupportedError
from gradc.tape.tape import Node
from gradc.torch_private.version import TORCH

Grads = Sequence[Tensor | None]
Mask = Callable[[Tensor, Tensor], Tensor]


def _halves(name_of_other: str, lost: Mask, won: Mask, node: Any, grads: Grads, made: Grads) -> Grads:
    """``lost``: where ``self`` is not chosen; ``won``: where the other operand is not. The other's gradient is made first."""
    (grad,), self, other = grads, node._saved_self, getattr(node, name_of_other)
    assert grad is not None
    of_other = None if made[1] is None else _half_at_ties(grad, self, other, won)
    return None if made[0] is None else _half_at_ties(grad, self, other, lost), of_other


def _clamped(node: Any, grads: Grads, made: Grads) -> Grads:
    """Of a clamp between tensors, of which one may be missing: (self, min, max)."""
    if node._saved_min is not None and node._saved_max is not None:
        raise UnsupportedError("formula that differs on fake tensors", "clamp between two tensors")
    if node._saved_max is None:
        return *_halves("_saved_min", *_LARGER, node, grads, made), None
    of_self, of_max = _halves("_saved_max", *_SMALLER, node, grads, (made[0], made[2]))
    return of_self, None, of_max


def _half_at_ties(grad: Tensor, self: Tensor, other: Tensor, is_zero: Mask) -> Tensor:
    mask = is_zero(self, other)
    return torch.where(self == other, grad / 2, grad).masked_fill_(mask, 0)


def _is_not(chosen: Mask) -> Mask:
    return lambda self, other: chosen(self, other).logical_or_(other.isnan()).logical_not_()


def _is(chosen: Mask) -> Mask:
    return lambda self, other: chosen(self, other).logical_or_(other.isnan())


_LARGER, _SMALLER = (torch.lt, torch.gt), (torch.gt, torch.lt)
# Of fmax and fmin, a number is chosen before a NaN: since 2.15 for their gradients as well.
_LARGER_NUMBER = _LARGER if TORCH < (2, 15) else (_is_not(torch.ge), _is(torch.gt))
_SMALLER_NUMBER = _SMALLER if TORCH < (2, 15) else (_is_not(torch.le), _is(torch.lt))
_MASKS: dict[str, tuple[str, tuple[Mask, Mask]]] = {
    "MaximumBackward0": ("_saved_other", _LARGER),
    "MinimumBackward0": ("_saved_other", _SMALLER),
    "FmaxBackward0": ("_saved_other", _LARGER_NUMBER),
    "FminBackward0": ("_saved_other", _SMALLER_NUMBER),
    "ClampMinBackward1": ("_saved_min", _LARGER),
    "ClampMaxBackward1": ("_saved_max", _SMALLER),
}
_SINCE_2_14: dict[str, Callable[[Node, Grads, Grads], Grads]] = {
    **{name: functools.partial(_halves, other, *masks) for name, (other, masks) in _MASKS.items()},
    "ClampBackward0": _clamped,
}
TIES = _SINCE_2_14 if TORCH >= (2, 14) else {}
