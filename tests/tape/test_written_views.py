"""An op in place on a view that saved its result: under create_graph its gradient takes another way once the view is gone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import gradc
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


def used_for_another_output(t: Tensor) -> tuple[Tensor, Tensor]:
    u = t[1:3]
    u.tanh_()
    return t.sin(), u * 3


FUNCTIONS = (
    base_is_read,
    other_view_is_read,
    view_is_read,
    view_of_the_view_is_read,
    view_is_saved,
    view_is_read_for_nothing,
    view_is_saved_for_nothing,
    view_of_the_view_is_saved_for_nothing,
    value_of_the_view_is_returned,
)

LEAVE_IT_TO_THE_CALLER = (returned, used_for_another_output)  # whether the view's node is there in backward


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


@pytest.mark.parametrize("is_dropped", [False, True])
@pytest.mark.parametrize("function", LEAVE_IT_TO_THE_CALLER, ids=lambda function: function.__name__)
def test_another_output_is_made_of_the_view(function: Callable[[Tensor], tuple[Tensor, Tensor]], is_dropped: bool) -> None:
    """Compiled, the segment of the base would hold that of the other output, which leads to it: neither would ever go."""

    def step(compile: Any, a: Tensor) -> Any:
        run, seen = compile(lambda a: function(a @ a.mT)), list[Any]()
        for _ in range(2):
            one, other = run(a)
            if is_dropped:
                del other
            (grad,) = torch.autograd.grad(one.sin().sum(), a, create_graph=True)
            seen += [grad, *torch.autograd.grad(grad.square().sum(), a)]
        return seen

    check(step, leaf(4, 4), allow_fallback=True)
    gradc.reset()
    step(gradc.compile, leaf(4, 4)())
    assert gradc.counters["fallbacks"]["written view that leads to another output"] == 2


def multiplied(t: Tensor, w: Tensor) -> Tensor:
    """Before the write, ``mul_`` saves a clone of the view, whose node comes after its own."""
    u = t[1:3]
    u.mul_(w[:2])
    return t.sin()


def divided_and_read_for_nothing(t: Tensor, w: Tensor) -> Tensor:
    u = t[1:3]
    u.div_(w[:2])
    u.sum()
    return t.sin()


def two_writes(t: Tensor, w: Tensor) -> Tensor:
    t[1:3].mul_(w[:2])
    t[:2].tanh_()
    return t.sin()


def two_writes_into_one(t: Tensor, w: Tensor) -> Tensor:
    u = t.view(-1)[2:6]
    u.mul_(w.view(-1)[:4])
    u.sigmoid_()
    return t.sin()


def through_a_view_of_it(t: Tensor, w: Tensor) -> Tensor:
    u = t[1:3]
    u[0].mul_(w[0])
    u.cos_()
    return t.sin()


def raised(t: Tensor, w: Tensor) -> Tensor:
    t[1:3].pow_(w[:2].exp())
    return t.sin()


def multiplied_for_another_output(t: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    u = t[1:3]
    u.mul_(w[:2])
    return t.sin(), u.sin()


WITH_ANOTHER = (
    multiplied,
    divided_and_read_for_nothing,
    two_writes,
    two_writes_into_one,
    through_a_view_of_it,
    raised,
    multiplied_for_another_output,
)


@pytest.mark.parametrize("function", WITH_ANOTHER, ids=lambda function: function.__name__)
def test_written_with_another(function: Callable[[Tensor, Tensor], Any]) -> None:
    def step(compile: Any, a: Tensor, w: Tensor) -> Any:
        outputs = compile(lambda a, w: function(a.square() + 1, w))(a, w)
        total = sum(out.sin().sum() for out in (outputs if isinstance(outputs, tuple) else (outputs,)))
        grads = list[Tensor]()
        for number in range(3):
            grads += torch.autograd.grad(total, (a, w), create_graph=number < 2)
            total = grads[-2].square().sum() + grads[-1].square().sum()
        return grads

    check(step, leaf(4, 2), leaf(4, 2))
