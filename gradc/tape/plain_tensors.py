"""Calls whose kernels take another way for a tensor that is a subclass, or has no values: recorded as for plain tensors.

    as_for_plain_tensors: (function, args, kwargs) -> a function that makes the calls of eager, or the function itself
    PlainTensorCalls:     a mode under which the user's Python makes them, as in the backward of a custom op

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
from torch.overrides import TorchFunctionMode

from gradc.ambient import autocast_state
from gradc.errors import UnsupportedError
from gradc.ir.autocast import is_cast_for
from gradc.torch_private.modes import below_autograd
from gradc.torch_private.transforms import is_in_transform, is_seen_wrapped

_aten = torch.ops.aten


def as_for_plain_tensors(function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """See the module's docstring.

    Raises:
        UnsupportedError: where eager's way cannot be traced.
    """
    choose = _CHOICES.get(function)
    return function if choose is None else choose(function, args, kwargs)


class PlainTensorCalls(TorchFunctionMode):
    """See the module's docstring."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        return as_for_plain_tensors(function, args, kwargs)(*args, **kwargs)


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
    tensors = _tensors(args, kwargs)[:3]
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


# ---- values that are refused: the op as a whole has eager's checks and words, a call of its own where gradients go through it


def _one_hot(function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    return function if any(map(is_in_transform, _tensors(args, kwargs))) else _whole_one_hot


def _whole_one_hot(tensor: Tensor, num_classes: int = -1) -> Tensor:
    with below_autograd():
        found: Tensor = _aten.one_hot.default(tensor, num_classes)
    return found


def _quantile(function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    q = kwargs.get("q", args[1] if len(args) > 1 else None)
    if not isinstance(q, Tensor) or any(map(is_in_transform, _tensors(args, kwargs))):
        return function

    def call(*args: Any, **kwargs: Any) -> Any:
        with below_autograd():
            _aten.quantile.default(q.new_zeros(1), q)  # of one number, for the sake of what it says of q
        return function(*args, **kwargs)

    return call


def _tensors(args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Tensor]:
    return [value for value in (*args, *kwargs.values()) if isinstance(value, Tensor)]


_MATMULS = (torch.matmul, torch.linalg.matmul, torch.Tensor.matmul, torch.Tensor.__matmul__, operator.matmul, operator.imatmul)
_CROSS_ENTROPY = ["input", "target", "weight", "size_average", "ignore_index", "reduce", "reduction", "label_smoothing"]
_CHOICES: dict[Any, Callable[[Any, Sequence[Any], Mapping[str, Any]], Any]] = {
    **dict.fromkeys(_MATMULS, _product),
    functional.cross_entropy: _cross_entropy,
    functional.scaled_dot_product_attention: _attention,
    functional.one_hot: _one_hot,
    **dict.fromkeys((torch.quantile, torch.nanquantile, Tensor.quantile, Tensor.nanquantile), _quantile),
}
_METHODS = {
    **dict.fromkeys(("matmul", "__matmul__"), torch.matmul),
    "quantile": torch.quantile,
    "nanquantile": torch.nanquantile,
}
