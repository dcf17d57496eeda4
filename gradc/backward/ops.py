"""Ops of gradc's own, ``torch.ops.gradc.*``: calls of backward formulas that read values, as one op with a fixed layout.

    masked_sum, filled_sum, filled_spread, put_sum         sums over the elements that a mask or an index picks out
    prod_backward, prod_dim_backward, cumprod_backward     formulas that ask for zeros

Each makes the ATen calls of the C++ code on real tensors, with the same operands in the same order; a fake tensor gets
the layout alone. ``backward.formulas`` puts them in the place of that code.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

Grads = Sequence[torch.Tensor | None]

_library = torch.library.Library("gradc", "DEF")
gradc_ops = torch.ops.gradc


def _op(schema: str, fake: Callable[..., torch.Tensor]) -> Callable[[Callable[..., torch.Tensor]], None]:
    """Define the op ``schema`` of gradc's; ``fake`` makes a tensor with the layout of its result."""

    def define(kernel: Callable[..., torch.Tensor]) -> None:
        name = _library.define(schema)
        _library.impl(name, kernel, "CompositeExplicitAutograd")
        torch.library.register_fake(f"gradc::{name}", fake, lib=_library)

    return define


def _scalar_like(grad: torch.Tensor, *_: Any) -> torch.Tensor:
    return grad.new_empty(())


@_op("masked_sum(Tensor grad, Tensor mask) -> Tensor", _scalar_like)
def _masked_sum(grad: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return grad.masked_select(mask).sum()


def _save_grad_and_mask(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.save_for_backward(*inputs)


def _masked_sum_backward(ctx: Any, incoming: torch.Tensor) -> Grads:
    """What SumBackward and MaskedSelectBackward make together."""
    grad, mask = ctx.saved_tensors
    shape = torch.broadcast_shapes(grad.shape, mask.shape)
    return torch.zeros_like(grad.expand(shape)).masked_fill_(mask, incoming), None


@_op("filled_sum(Tensor grad, int dim, Tensor index) -> Tensor", _scalar_like)
def _filled_sum(grad: torch.Tensor, dim: int, index: torch.Tensor) -> torch.Tensor:
    return grad.index_select(dim, _unique(index)).sum()


@_op("filled_spread(Tensor incoming, SymInt[] size, int dim, Tensor index) -> Tensor", lambda g, size, *_: g.new_empty(size))
def _filled_spread(incoming: torch.Tensor, size: list[int], dim: int, index: torch.Tensor) -> torch.Tensor:
    unique = _unique(index)
    part = [unique.numel() if size and position == dim % len(size) else length for position, length in enumerate(size)]
    return torch.zeros(size, dtype=incoming.dtype, device=incoming.device).index_add_(dim, unique, incoming.expand(part))


def _unique(index: torch.Tensor) -> torch.Tensor:
    found: torch.Tensor = torch.ops.aten._unique.default(index, sorted=False)[0]
    return found


def _save_for_filled_sum(ctx: Any, inputs: Any, output: Any) -> None:
    grad, ctx.dim, index = inputs
    ctx.size = grad.shape
    ctx.save_for_backward(index)


def _filled_sum_backward(ctx: Any, incoming: torch.Tensor) -> Grads:
    """What SumBackward and IndexSelectBackward make together."""
    (index,) = ctx.saved_tensors
    return gradc_ops.filled_spread(incoming, ctx.size, ctx.dim, index), None, None


def _save_for_filled_spread(ctx: Any, inputs: Any, output: Any) -> None:
    _, _, ctx.dim, index = inputs
    ctx.save_for_backward(index)


def _filled_spread_backward(ctx: Any, incoming: torch.Tensor) -> Grads:
    (index,) = ctx.saved_tensors
    return gradc_ops.filled_sum(incoming, ctx.dim, index), None, None, None


def _differentiate(name: str, backward: Callable[[Any, torch.Tensor], Grads], save: Callable[[Any, Any, Any], None]) -> None:
    """Give the op an autograd node, which does nothing for a gradient that is not defined, as torch's own."""

    def save_undefined(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.set_materialize_grads(False)
        save(ctx, inputs, output)

    def or_nothing(ctx: Any, incoming: torch.Tensor | None) -> Any:
        return (None,) * len(ctx.needs_input_grad) if incoming is None else backward(ctx, incoming)

    torch.library.register_autograd(f"gradc::{name}", or_nothing, setup_context=save_undefined, lib=_library)


_differentiate("masked_sum", _masked_sum_backward, _save_grad_and_mask)
_differentiate("filled_sum", _filled_sum_backward, _save_for_filled_sum)
_differentiate("filled_spread", _filled_spread_backward, _save_for_filled_spread)


@_op("put_sum(Tensor grad, Tensor?[] indices, SymInt[] size) -> Tensor", lambda grad, _, size: grad.new_empty(size))
def _put_sum(grad: torch.Tensor, indices: list[torch.Tensor | None], size: list[int]) -> torch.Tensor:
    found: torch.Tensor = torch.ops.aten.index.Tensor(grad, indices)
    return found.sum_to_size(size)


@_op(
    "prod_backward(Tensor grad, Tensor input, Tensor result, bool is_recorded) -> Tensor",
    lambda grad, input, *_: grad.new_empty(input.shape),
)
def _prod_backward(grad: torch.Tensor, input: torch.Tensor, result: torch.Tensor, is_recorded: bool) -> torch.Tensor:
    """``is_recorded``: the C++ code runs with recording on, though nothing needs a gradient."""
    with torch.no_grad():
        num_zeros = len((input == 0).nonzero())
        if num_zeros == 0:
            return grad * (result / input).conj()
        if num_zeros > 1 and not is_recorded:
            return torch.zeros_like(input, memory_format=torch.contiguous_format)
        return _prod_of_others(grad, input.contiguous().view(-1), 0).view_as(input)


@_op(
    "prod_dim_backward(Tensor grad, Tensor input, Tensor result, int dim) -> Tensor",
    lambda grad, input, *_: grad.new_empty(input.shape),
)
def _prod_dim_backward(grad: torch.Tensor, input: torch.Tensor, result: torch.Tensor, dim: int) -> torch.Tensor:
    """``grad`` and ``result`` have ``dim``, of size 1."""
    with torch.no_grad():
        if (input == 0).any():
            return _prod_of_others(grad, input, dim)
        return grad * (result / input).conj()


def _prod_of_others(grad: torch.Tensor, input: torch.Tensor, dim: int) -> torch.Tensor:
    """``grad`` times the product of all other elements along ``dim``, of which there are at least two."""
    size = [1 if position == dim else length for position, length in enumerate(input.shape)]
    ones = torch.ones(size, dtype=grad.dtype, device=grad.device)
    before = torch.cat([ones, input.narrow(dim, 0, input.shape[dim] - 1)], dim).cumprod(dim)
    behind = input.narrow(dim, 1, input.shape[dim] - 1).flip(dim)
    return grad * (before * torch.cat([ones, behind], dim).cumprod(dim).flip(dim)).conj()


@_op(
    "cumprod_backward(Tensor grad, Tensor input, int dim, Tensor output, bool is_recorded) -> Tensor",
    lambda grad, input, *_: grad.new_empty(input.shape),
)
def _cumprod_backward(
    grad: torch.Tensor, input: torch.Tensor, dim: int, output: torch.Tensor, is_recorded: bool
) -> torch.Tensor:
    """``is_recorded``: as of prod_backward."""
    with torch.set_grad_enabled(is_recorded):
        found: torch.Tensor = torch.ops.aten.cumprod_backward.default(grad, input, dim, output)
        return found
