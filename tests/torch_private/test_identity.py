"""Ops that return their argument: it is the same object, by ``is`` and by ``id``, and what is done to one is done to both."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import gradc
from gradc.torch_private.version import TORCH
from tests.oracle import check

RETURN_THEIR_ARGUMENT: dict[str, Callable[[Tensor], Tensor]] = {
    "contiguous": lambda y: y.contiguous(),
    "to": lambda y: y.to(torch.float32),
    "dropout in evaluation": lambda y: F.dropout(y, 0.5, False),
    "dropout of nothing": lambda y: torch.dropout(y, 0.0, True),
    "dropout module": torch.nn.Dropout().eval(),
    "atleast_1d": torch.atleast_1d,
    "+": operator.pos,
}
CHANGE_THEIR_ARGUMENT: dict[str, Callable[[Tensor], Tensor]] = {
    "add_": lambda y: y.add_(1),
    "relu in place": lambda y: F.relu(y, inplace=True),
    "out": lambda y: torch.mul(y.detach(), 2, out=y),
    "+=": lambda y: operator.iadd(y, 1),
}
RETURN_ANOTHER: dict[str, Callable[[Tensor], Tensor]] = {
    "clone": lambda y: y.clone(),
    "view": lambda y: y.view(3),
    "dropout": lambda y: F.dropout(y, 0.5),
}
OPS = [pytest.param(op, id=name) for name, op in {**RETURN_THEIR_ARGUMENT, **RETURN_ANOTHER}.items()]


def made() -> Tensor:
    return torch.arange(3.0, requires_grad=True)


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("is_given", [True, False])
def test_one_object_or_two(op: Callable[[Tensor], Tensor], is_given: bool) -> None:
    def step(compile: Any, x: Tensor) -> Any:
        def f(x: Tensor) -> Any:
            y = x if is_given else x * 2
            z = op(y)
            known = {id(y): 3.0}
            return y * known.get(id(z), 5.0), z * (2 if z is y else 4), id(z) == id(y)

        y, z, is_one = compile(f)(x)
        (y.sum() + z.sum()).backward()
        return y, z, is_one

    check(step, made, allow_fallback=True)


def attribute(y: Tensor, z: Tensor) -> Any:
    z.factor = 3.0  # type: ignore[attr-defined]
    return (y * z).sum() * getattr(y, "factor", 1.0)


def attribute_of_the_first(y: Tensor, z: Tensor) -> Any:
    y.factor = 3.0  # type: ignore[attr-defined]
    return (y * z).sum() * getattr(z, "factor", 1.0)


def gradient_written(y: Tensor, z: Tensor) -> Any:
    if not y.is_leaf:
        return (y * z).sum()
    z.grad = torch.ones(3)
    return (y * z).sum() * (5.0 if y.grad is None else 7.0)


def gradient_read(y: Tensor, z: Tensor) -> Any:
    return (y * z).sum() * (5.0 if z.is_leaf and z.grad is None else 7.0)


def made_a_leaf(y: Tensor, z: Tensor) -> Any:
    if z.is_leaf:
        z.requires_grad_()
    return (y.sin() * z).sum() + (5.0 if y.requires_grad else 0.0)


USES = [attribute, attribute_of_the_first, gradient_written, gradient_read, made_a_leaf]


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("use", USES, ids=lambda use: use.__name__)
@pytest.mark.parametrize("needs_gradient", [True, False])
def test_what_is_done_to_an_argument(op: Callable[[Tensor], Tensor], use: Callable[..., Any], needs_gradient: bool) -> None:
    """Silent before: ``y = x.float()`` had attributes and a ``grad`` of its own, and became a leaf beside x."""

    def step(compile: Any, x: Tensor) -> Any:
        run = compile(lambda x: use(x, op(x)))
        losses = [run(x) for _ in range(2)]
        for loss in losses:
            loss.backward() if loss.requires_grad else None
        return losses, x.grad, x.requires_grad, getattr(x, "factor", None)

    check(step, lambda: torch.arange(3.0, requires_grad=needs_gradient), allow_fallback=True)


@pytest.mark.parametrize("op", [pytest.param(op, id=name) for name, op in CHANGE_THEIR_ARGUMENT.items()])
@pytest.mark.parametrize("use", USES, ids=lambda use: use.__name__)
@pytest.mark.parametrize("is_given", [True, False])
def test_what_is_done_to_a_changed_argument(op: Callable[[Tensor], Tensor], use: Callable[..., Any], is_given: bool) -> None:
    def step(compile: Any, x: Tensor) -> Any:
        @compile
        def run(x: Tensor) -> Any:
            y = x if is_given else x * 2
            return use(y, op(y))

        results = [run(x) for _ in range(2)]
        return results, [result.backward() for result in results if result.requires_grad], x.grad, vars(x).get("factor")

    check(step, lambda: torch.arange(3.0), allow_fallback=True)


def test_other_compilers_keep_torchs_dropout() -> None:
    """Its decomposition returns a copy before torch 2.14."""
    gradc.compile(lambda x: x * 2)(torch.ones(2))  # so that the patches are applied

    def is_the_same(x: Tensor) -> bool:
        y = x * 2
        return F.dropout(y, 0.5, False) is y

    assert torch.compile(is_the_same, backend="eager")(torch.ones(2)) is (TORCH >= (2, 14))
