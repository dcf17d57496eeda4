"""An op in place on a view that saved its result: under create_graph its gradient takes another way once the view is gone."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import gradc
from gradc.bits import same_bits
from tests.fuzz.toolbox import attempt
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


def two_views(t: Tensor) -> tuple[Tensor, Tensor]:
    t[:2].sigmoid_()
    u = t.view(-1)[5:9]
    u.exp_()
    return t.sin(), u.sin() * t[0].sum()


Outputs = tuple[Tensor, Tensor]
LEAVE_IT_TO_THE_CALLER = (returned, used_for_another_output, two_views)  # whether the view's node is there in backward


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


@pytest.mark.parametrize("order", [1, 2, 3])
@pytest.mark.parametrize("kept", ["both", "base", "view"])
@pytest.mark.parametrize("function", LEAVE_IT_TO_THE_CALLER, ids=lambda function: function.__name__)
def test_another_output_is_made_of_the_view(function: Callable[[Tensor], Outputs], kept: str, order: int) -> None:
    """The segment of the base knows that of the other output weakly, as eager's CopySlices does the view's node."""

    def step(compile: Any, a: Tensor) -> Any:
        run, seen = compile(lambda a: function(a @ a.mT)), list[Any]()
        for is_dropped_between in (False, True):
            one, other = run(a)
            total = {"both": one.sin().sum() + other.sin().sum(), "base": one.sin().sum(), "view": other.sin().sum()}[kept]
            if kept == "base":
                del other
            for number in range(order):
                seen += torch.autograd.grad(total, a, create_graph=number + 1 < order)
                if is_dropped_between and number == 0:
                    one = other = None
                total = seen[-1].square().sum()
        return seen

    check(step, leaf(4, 4))


@pytest.mark.parametrize("function", LEAVE_IT_TO_THE_CALLER, ids=lambda function: function.__name__)
def test_segments_that_know_each_other_die(function: Callable[[Tensor], Outputs]) -> None:
    """Each held the other, where no backward ran."""
    run = gradc.compile(lambda a: function(a @ a.mT), options={"compare_with_eager": False})
    for _ in range(3):
        a = torch.randn(4, 4, requires_grad=True)
        outputs, is_there = run(a), weakref.ref(a)
        del a, outputs
        assert is_there() is None


@pytest.mark.parametrize("change", ["neither", "base", "view"])
def test_changed_before_backward(change: str) -> None:
    """What the segment saved shares its version with the outputs."""

    def step(compile: Any, a: Tensor) -> Any:
        events = list[Any]()
        one, other = compile(lambda a: returned(a.sin()))(a)
        with torch.no_grad():
            (one if change == "base" else other if change == "view" else torch.ones(())).mul_(2)
        attempt(events, lambda: torch.autograd.grad(one.sum(), a, create_graph=True))
        return events

    check(step, leaf(4, 4))


@pytest.mark.parametrize("pack", [lambda tensor: tensor.clone(), lambda tensor: tensor])
def test_under_saved_tensors_hooks(pack: Callable[[Tensor], Any]) -> None:
    def step(compile: Any, a: Tensor) -> Any:
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            one, other = compile(lambda a: used_for_another_output(a @ a.mT))(a)
        (grad,) = torch.autograd.grad(one.sin().sum() + other.sum(), a, create_graph=True)
        return grad, torch.autograd.grad(grad.square().sum(), a)

    check(step, leaf(4, 4), allow_fallback=True)


@pytest.mark.parametrize("backend", ["eager", "inductor"])
def test_without_native_nodes(backend: str) -> None:
    """Nodes in Python cannot know one weakly."""

    def step(compile: Any, a: Tensor) -> Any:
        one, other = compile(lambda a: used_for_another_output(a @ a.mT))(a)
        (grad,) = torch.autograd.grad(one.sin().sum(), a, create_graph=True)
        return grad, torch.autograd.grad(grad.square().sum(), a), other

    a = leaf(4, 4)()
    gradc.reset()
    compiled = step(lambda function: gradc.compile(function, backend=backend), a)
    assert same_bits(compiled, step(lambda function: function, a))
    assert gradc.counters["fallbacks"]["written view that leads to another output"] == 1


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
