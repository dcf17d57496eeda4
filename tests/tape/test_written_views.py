"""An op in place on a view that saved its result: under create_graph its gradient takes another way once the view is gone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.oracle import check, leaf


def base_is_read(t: Tensor) -> Tensor:
    t[1:3].sigmoid_()
    return t.sin()


def other_view_is_read(t: Tensor) -> Tensor:
    u, v = t[None][0], t[None]
    u.tanh_()
    return v * 3


def view_is_read(t: Tensor) -> Tensor:
    u = t[1:3]
    u.exp_()
    return t.sum() + u * 3


def view_of_the_view_is_read(t: Tensor) -> Tensor:
    u = t[1:3]
    u.sigmoid_()
    return t.sum() + u.reshape(-1).sin()


def view_is_saved(t: Tensor) -> Tensor:
    u = t[1:3]
    u.sigmoid_()
    return t.sum() + u * u


def returned(t: Tensor) -> tuple[Tensor, Tensor]:
    """The view that was written into comes out, too."""
    u = t[1:3].exp_()
    return t.cos(), u


def view_is_read_for_nothing(t: Tensor) -> Tensor:
    u = t[1:3]
    u.sigmoid_()
    u.sum()
    return t.sin()


def view_is_saved_for_nothing(t: Tensor) -> Tensor:
    u = t[1:3]
    u.tanh_()
    u * t[:2]
    return t.sin()


def view_of_the_view_is_saved_for_nothing(t: Tensor) -> Tensor:
    u = t[None][0]
    u.tanh_()
    torch.nn.functional.linear(t, u).exp()
    return t.sin()


def value_of_the_view_is_returned(t: Tensor) -> tuple[Tensor, Tensor]:
    u = t[1:3]
    u.exp_()
    return t.sin(), u.mT.exp().detach()


FUNCTIONS = (
    base_is_read,
    other_view_is_read,
    view_is_read,
    view_of_the_view_is_read,
    view_is_saved,
    returned,
    view_is_read_for_nothing,
    view_is_saved_for_nothing,
    view_of_the_view_is_saved_for_nothing,
    value_of_the_view_is_returned,
)


@pytest.mark.parametrize("order", [1, 2, 3])
@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: function.__name__)
def test_written_view(function: Callable[[Tensor], Any], order: int) -> None:
    def step(compile: Any, a: Tensor) -> Any:
        outputs = compile(lambda a: function(a @ a.mT))(a)
        total = sum(out.sin().sum() for out in (outputs if isinstance(outputs, tuple) else (outputs,)))
        grads = []
        for number in range(order):
            grads += torch.autograd.grad(total, a, create_graph=number + 1 < order)
            total = grads[-1].square().sum()
        return grads

    check(step, leaf(4, 4))
