"""Verified calls under create_graph: sums that are handed on, and the backward of a backward."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import gradc
from gradc.backends import lookup_backend
from gradc.errors import DifferenceWarning
from gradc.shadow.arrivals import Arrivals, difference
from tests.shadow.test_verify import VERIFY, counted, leaves, next_number


@pytest.fixture(autouse=True)
def nothing_counted():
    gradc.counters.clear()
    yield
    gradc.reset()


def perturbing_from(name: str, first: int) -> None:
    """A backend whose results, from the ``first`` of its Programs on, are the next larger numbers."""
    made: list[Any] = []

    def backend(program: Any) -> Any:
        run = lookup_backend("eager")(program)
        made.append(program)
        number = len(made)

        def perturbed(args: list[Any]) -> list[Any]:
            return [next_number(result) if number >= first and result is not None else result for result in run(args)]

        return perturbed

    gradc.register_backend(name, backend)


def penalty(compiled: Any, x: Tensor, w: Tensor) -> None:
    loss = compiled(x, w).sum()
    (grad,) = torch.autograd.grad(loss, x, create_graph=True)
    (loss + grad.square().sum()).backward()


def energy(x: Tensor, w: Tensor) -> Tensor:
    return (x * w).tanh().sin() * x.exp()


def test_a_gradient_penalty_is_verified_in_both_passes():
    penalty(gradc.compile(energy, options=VERIFY), *leaves(3))
    assert counted() == {"calls": 1, "backwards": 2}


def test_forces_are_verified_and_learnt_from():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 8), nn.SiLU(), nn.Linear(8, 1))
    compiled = gradc.compile(model, options={"verify": 3})
    for _ in range(3):
        positions = torch.randn(5, 3, requires_grad=True)
        total = compiled(positions).sum()
        (forces,) = torch.autograd.grad(total, positions, create_graph=True)
        (total.square() + (forces - 1).square().mean()).backward()
    assert counted() == {"calls": 3, "backwards": 6}


def test_the_third_order_is_verified():
    x, w = leaves(3)
    y = gradc.compile(energy, options=VERIFY)(x, w).sum()
    for _ in range(2):
        (y,) = torch.autograd.grad(y.sum(), x, create_graph=True)
    y.sum().backward()
    assert counted() == {"calls": 1, "backwards": 3}


def test_what_the_gradient_that_came_in_gets_is_verified():
    x, w = leaves(3)
    v = torch.ones(3, requires_grad=True)
    y = gradc.compile(energy, options=VERIFY)(x, w)
    gx, gw = torch.autograd.grad(y, (x, w), v.sin(), create_graph=True)
    (gx * gw).sum().backward()
    assert counted() == {"calls": 1, "backwards": 2}
    assert v.grad is not None


def test_one_gradient_that_comes_in_at_two_outputs_gets_what_both_send_it():
    x, w = leaves(3)
    v = torch.ones(3, requires_grad=True)
    outs = gradc.compile(lambda x, w: (x.exp() * w, x * w), options=VERIFY)(x, w)
    first = torch.autograd.grad(outs, (x, w), (v, v), create_graph=True)
    sum(grad.sum() for grad in first).backward()
    assert "differences" not in counted()


def test_a_bit_in_the_backward_of_a_backward_is_found():
    perturbing_from("one_bit_of_the_second_order", 3)  # forward, backward with a history, its backward
    with pytest.warns(DifferenceWarning, match=r"gradient of [xw]: element"):
        penalty(gradc.compile(energy, backend="one_bit_of_the_second_order", options=VERIFY), *leaves(3))


@pytest.mark.filterwarnings("ignore:Using backward")
def test_a_sum_that_was_begun_outside_is_compared_as_a_sum():
    x, w = leaves(3)
    y = gradc.compile(lambda x, w: (x * w).sin() + x / 3, options=VERIFY)(x, w)
    (y + x * 0.1).sum().backward(create_graph=True)  # what comes from x * 0.1 comes first
    assert counted() == {"calls": 1, "backwards": 1}


def test_a_gradient_that_is_eager_s_sum_by_itself_is_a_difference_unless_it_holds_what_came_before():
    first, second = torch.ones(2), torch.full((2,), 3.0)
    for is_taken in (True, False):
        arrived = Arrivals()
        arrived.add(first, None)
        arrived.add(first + second, first, is_taken)
        assert (difference("x", first + second, arrived, is_differentiable=True) == "") == is_taken
