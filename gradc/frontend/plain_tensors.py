"""Calls whose kernels ask whether a tensor is a subclass, and take another way for one: recorded as for plain tensors.

    as_for_plain_tensors: (function, args, kwargs) -> a function that makes the calls of eager, or the function itself

A tape is recorded with fake tensors, under a mode: at::isTensorSubclassLike says yes to each. Of the kernels in torch 2.13 that
ask, most only write into no tensor of their own, which rounds the same; those here sum or multiply in another order. Inside of
torch.func's transforms it says so in eager, too, of what a transform has wrapped.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from gradc.ambient import autocast_state
from gradc.errors import UnsupportedError
from gradc.ir.autocast import is_cast_for
from gradc.torch_private.transforms import is_seen_wrapped

_aten = torch.ops.aten


def as_for_plain_tensors(function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """See the module's docstring.

    Raises:
        UnsupportedError: where eager's way cannot be traced.
    """
    choose = _CHOICES.get(function)
    return function if choose is None else choose(function, args, kwargs)


def method_named(name: str) -> Any:
    """The function that makes the same calls as a tensor's method of this name; None if it is of no concern here."""
    return _METHODS.get(name)


# ---- a batch of matrices times one matrix: as subclasses folded into one product, else a product for each


def _product(function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    if len(args) != 2 or kwargs or not _is_folded(*args):
        return function
    if is_cast_for(_aten.matmul.default, autocast_state()):
        raise UnsupportedError("product of a batch and one matrix under autocast")
    return _broadcast_product


def _is_folded(a: Any, b: Any) -> bool:
    """True if a product of subclasses would be folded that eager broadcasts."""
    if not isinstance(a, Tensor) or not isinstance(b, Tensor) or a.dim() != 3 or b.dim() != 3:
        return False
    alone = [one for one, other in ((a, b), (b, a)) if _is_one(one.shape[0]) and not _is_one(other.shape[0])]
    return any(not one.requires_grad and not is_seen_wrapped(one) for one in alone)


def _is_one(size: Any) -> bool:
    return isinstance(size, int) and size == 1  # what is symbolic is at least 2


def _broadcast_product(a: Tensor, b: Tensor) -> Tensor:
    """The calls of ``at::matmul``, in its order."""
    batch = b.shape[0] if _is_one(a.shape[0]) else a.shape[0]
    a, b = (one.expand(batch, *one.shape[1:]).reshape(batch, *one.shape[1:]) for one in (a, b))
    product = _aten._unsafe_view.default(a.bmm(b), [batch, a.shape[1], b.shape[2]])
    assert isinstance(product, Tensor)
    return product


def _attention(function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    tensors = [value for value in (*args, *kwargs.values()) if isinstance(value, Tensor)][:3]
    if all(tensor.dim() == 3 for tensor in tensors) and len({str(tensor.shape[0]) for tensor in tensors}) > 1:
        raise UnsupportedError("attention of 3 dimensions that broadcasts")
    return function


# ---- the mean over weighted classes, smoothed: its divisor as subclasses a sum with zeros in it, else of a selection


def _cross_entropy(function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    given = dict(zip(_CROSS_ENTROPY, args)) | dict(kwargs)
    target, weight = given.get("target"), given.get("weight")
    is_mean = given.get("reduction", "mean") == "mean"
    if weight is None or not is_mean or not given.get("label_smoothing") or not isinstance(target, Tensor):
        return function
    if target.is_floating_point():
        return function
    raise UnsupportedError("smoothed cross entropy with weights", "eager selects the targets that are not ignored")


_MATMULS = (torch.matmul, torch.linalg.matmul, torch.Tensor.matmul, torch.Tensor.__matmul__, operator.matmul, operator.imatmul)
_CROSS_ENTROPY = ["input", "target", "weight", "size_average", "ignore_index", "reduce", "reduction", "label_smoothing"]
_CHOICES: dict[Any, Callable[[Any, Sequence[Any], Mapping[str, Any]], Any]] = {
    **dict.fromkeys(_MATMULS, _product),
    functional.cross_entropy: _cross_entropy,
    functional.scaled_dot_product_attention: _attention,
}
_METHODS = {"matmul": torch.matmul, "__matmul__": torch.matmul}
