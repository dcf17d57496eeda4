"""torch.func's transforms of an op, each a function that is compiled: vjp, jvp, vmap of grad, grad of vmap, jacrev.

    transformed: (op, its author's sample) -> Samples       what is differentiated is given twice: with and without a gradient

Kernels and formulas ask whether a tensor is wrapped by a transform, and take another way for one that is. A vjp calls the
formulas once its own transform has ended, jacrev inside of a vmap.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.func import grad, jacrev, jvp, vjp, vmap
from torch.utils import _pytree as pytree

from tests.sweep.suites import Sample

Function = Callable[[Tensor], Any]  # the op, of its first differentiable argument


def transformed(op: Any, sample: Any) -> list[Sample]:
    """A sample that no gradient flows through has none."""
    given, spec = pytree.tree_flatten((sample.input, sample.args, sample.kwargs))
    places = [place for place, value in enumerate(given) if isinstance(value, Tensor) and value.requires_grad]
    if not places or any(isinstance(value, Tensor) and value.layout is not torch.strided for value in given):
        return []

    function = op.op

    def make(transform: Callable[[Function, Tensor], Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            def of_first(first: Tensor) -> Any:
                changed = [*arguments[: places[0]], first, *arguments[places[0] + 1 :]]
                input, args, kwargs = pytree.tree_unflatten(changed, spec)
                return function(input, *args, **kwargs)

            return transform(of_first, arguments[places[0]])

        return call

    plain = tuple(value.detach() if isinstance(value, Tensor) else value for value in given)
    through = [Sample(make(transform), tuple(given)) for transform in (_vjp, _vmap_of_grad, _grad_of_vmap, _jacrev)]
    return [*through, *(Sample(make(transform), plain) for transform in (_vjp, _jvp, _jacrev))]


def _loss(outputs: Any) -> Tensor:
    found = [torch.view_as_real(out) if out.is_complex() else out for out in _results(outputs)]
    return sum((out.sin().sum() for out in found), torch.zeros(()))


def _results(outputs: Any) -> list[Tensor]:
    leaves = pytree.tree_leaves(outputs)
    return [leaf for leaf in leaves if isinstance(leaf, Tensor) and (leaf.is_floating_point() or leaf.is_complex())]


def _direction(like: Tensor) -> Tensor:
    return torch.arange(1, like.numel() + 1, dtype=like.dtype).view(like.shape).cos()


def _vjp(function: Function, first: Tensor) -> Any:
    outputs, pull = vjp(lambda first: tuple(_results(function(first))), first)
    return outputs, pull(tuple(map(_direction, outputs)))


def _jvp(function: Function, first: Tensor) -> Any:
    return jvp(lambda first: tuple(_results(function(first))), (first,), (_direction(first),))


def _vmap_of_grad(function: Function, first: Tensor) -> Any:
    rows = torch.stack([first, first * 0.75])
    return vmap(grad(lambda row: _loss(function(row))), randomness="different")(rows)


def _grad_of_vmap(function: Function, first: Tensor) -> Any:
    rows = torch.stack([first, first * 0.75])
    return grad(lambda rows: _loss(vmap(lambda row: tuple(_results(function(row))), randomness="different")(rows)))(rows)


def _jacrev(function: Function, first: Tensor) -> Any:
    return jacrev(lambda first: tuple(_results(function(first))))(first)
