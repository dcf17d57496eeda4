"""What generated programs call, besides torch: a few autograd.Functions, hooks, and ``attempt``."""

from __future__ import annotations

import builtins
import contextlib
import math
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

from tests.oracle import constant, indices, leaf

__all__ = [
    "F",
    "Product",
    "Shrink",
    "Sum",
    "TwoOutputs",
    "attempt",
    "changing",
    "checkpoint",
    "constant",
    "copies_of",
    "doubling",
    "indices",
    "leaf",
    "loss_of",
    "noting",
    "odd",
    "packed_as_double",
    "straight_loss",
    "threads",
    "torch",
]


class Product(torch.autograd.Function):
    """x * y with both saved."""

    @staticmethod
    def forward(ctx, x, y):
        ctx.save_for_backward(x, y)
        return x * y

    @staticmethod
    def backward(ctx, grad):
        x, y = ctx.saved_tensors
        return (grad * y).sum_to_size(x.shape), (grad * x).sum_to_size(y.shape)


class Shrink(torch.autograd.Function):
    """tanh, whose result is saved; the gradient is deliberately another one."""

    @staticmethod
    def forward(ctx, x):
        y = torch.tanh(x)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, grad):
        (y,) = ctx.saved_tensors
        return grad * (1 - y * y) * 0.5


class Sum(torch.autograd.Function):
    """The sum of all inputs. Its node sends one tensor of its own to all that have the result's shape."""

    @staticmethod
    def forward(ctx, *inputs):
        ctx.shapes = tuple(x.shape for x in inputs)
        return sum(inputs)

    @staticmethod
    def backward(ctx, grad):
        grad = grad * 2
        return tuple(grad.sum_to_size(shape) for shape in ctx.shapes)  # itself, where it has that shape


class TwoOutputs(torch.autograd.Function):
    """Two outputs of one input."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin(), x.cos()

    @staticmethod
    def backward(ctx, a, b):
        (x,) = ctx.saved_tensors
        return a * x.cos() - b * x.sin()


def attempt(events: list[Any], action: Callable[[], Any]) -> None:
    """Run ``action``; note its result, or the builtin class of its error.

    What a failed backward had done by then, gradients kept and hooks called, is taken back: eager's nodes fail one by one,
    those of one segment of gradc's before the first of them runs.
    """
    known = sys._getframe(1).f_locals
    tensors = [value for value in (*known.values(), *known.get("out", {}).values()) if isinstance(value, torch.Tensor)]
    keepers = [tensor for tensor in tensors if tensor.requires_grad and (tensor.is_leaf or tensor.retains_grad)]
    before = [None if tensor.grad is None else tensor.grad.clone() for tensor in keepers]
    start = len(events)
    try:
        events.append(action())
    except Exception as error:
        for tensor, grad in zip(keepers, before, strict=True):
            tensor.grad = grad
        del events[start:]
        events.append(next(kind.__name__ for kind in type(error).__mro__ if kind.__module__ == builtins.__name__))


def loss_of(outputs: dict[str, Any], *names: str) -> torch.Tensor:
    """A scalar of the named outputs, as float32."""
    return sum((outputs[name].float().sin().sum() for name in names), torch.zeros(()))


def straight_loss(*values: Any) -> torch.Tensor:
    """A scalar of those that have a history, as float32."""
    tensors = [value for value in values if isinstance(value, torch.Tensor) and value.requires_grad]
    return sum((tensor.float().sin().sum() for tensor in tensors), torch.zeros(()))


def copies_of(*values: Any) -> list[torch.Tensor]:
    return [value.detach().clone() for value in values if isinstance(value, torch.Tensor)]


def noting(events: list[Any], name: str) -> Callable[[torch.Tensor], None]:
    """A hook that notes the gradient."""
    return lambda grad: events.append((name, grad.clone()))


def doubling(grad: torch.Tensor) -> torch.Tensor:
    """A hook that changes the gradient."""
    return grad * 2


def changing(events: list[Any]) -> Callable[[torch.Tensor], None]:
    """A hook on a leaf that notes what has arrived, and changes it in place."""

    def change(tensor: torch.Tensor) -> None:
        events.append(tensor.grad.clone())
        with torch.no_grad():
            tensor.grad.mul_(3)

    return change


@contextlib.contextmanager
def threads(number: int) -> Iterator[None]:
    """While inside, torch runs on so many."""
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


_SPECIAL = (float("nan"), float("inf"), -float("inf"), 0.0, -0.0, 1e-40, -1e-45, 3e38, 1e-30, 1.0, -1.0)


def odd(shape: tuple[int, ...], dtype: str, layout: str, values: str, is_leaf: bool) -> Callable[[], torch.Tensor]:
    """A maker of a tensor that lies in memory as ``layout`` says, with ``values`` that kernels treat apart."""
    is_expanded = layout == "expanded" and bool(shape) and 0 not in shape

    def make() -> torch.Tensor:
        tensor = _laid_out((*shape[:-1], 1) if is_expanded else shape, getattr(torch, dtype), layout)
        flat = torch.randn(shape)
        if values == "special":
            chosen = torch.tensor(_SPECIAL)[torch.randint(len(_SPECIAL), shape)]
            flat = torch.where(torch.rand(shape) < 0.15, chosen, flat)
        flat = flat * {"tiny": 1e-38, "large": 100.0}.get(values, 1.0)
        tensor.copy_(flat[..., :1] if is_expanded else flat)
        return (tensor.expand(shape) if is_expanded else tensor).requires_grad_(is_leaf)

    return make


def _laid_out(shape: tuple[int, ...], dtype: torch.dtype, layout: str) -> torch.Tensor:
    if layout == "transposed" and len(shape) > 1:
        return torch.empty(shape[::-1], dtype=dtype).permute(*reversed(range(len(shape))))
    if layout == "gaps" and shape:
        return torch.empty((*shape[:-1], 2 * shape[-1]), dtype=dtype)[..., ::2]
    if layout == "offset":
        return torch.empty(math.prod(shape) + 1, dtype=dtype)[1:].view(shape)
    return torch.empty(shape, dtype=dtype)


def packed_as_double() -> torch.autograd.graph.saved_tensors_hooks:
    """Saved-tensor hooks that keep another dtype, and change values a little."""
    return torch.autograd.graph.saved_tensors_hooks(lambda t: (t.dtype, t.double() * 1.25), lambda kept: kept[1].to(kept[0]))
