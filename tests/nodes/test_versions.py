"""Version counters of gradients: whether eager wrote a sum over an addend, or made a new tensor, shows in them."""

import pytest
import torch

from tests.oracle import check, leaf


def test_a_weight_used_twice():
    """The first gradient is a view, to which the engine adds in a new tensor."""

    def step(compile, x, w):
        compile(lambda x, w: torch.nn.functional.linear(torch.nn.functional.linear(x, w).tanh(), w).sum())(x, w).backward()
        return w.grad._version

    check(step, leaf(2, 3), leaf(3, 3))


def test_gradients_that_are_no_views_are_added_up_in_place():
    def step(compile, a):
        compile(lambda a: torch.nn.functional.mse_loss(a, a.expand_as(a), reduction="none"))(a).sum().backward()
        return a.grad._version

    check(step, leaf(2, 3))


def test_a_weight_used_by_two_compiled_functions():
    def step(compile, x, w):
        f = compile(lambda x, w: torch.nn.functional.linear(x, w).tanh())
        f(f(x, w), w).sum().backward()
        return w.grad._version

    check(step, leaf(2, 3), leaf(3, 3))


@pytest.mark.parametrize(
    "function", [lambda a: a.max(1).values, lambda a: a.max(), lambda a: a.index_select(0, torch.tensor([1, 0, 0]))]
)
def test_formulas_that_write_into_their_result(function):
    def step(compile, a):
        compile(function)(a).sum().backward()
        return a.grad._version

    check(step, leaf(3, 2))
