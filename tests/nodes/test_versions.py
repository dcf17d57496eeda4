"""Version counters of gradients: whether eager wrote a sum over an addend, or made a new tensor, shows in them."""

import pytest
import torch
import torch.nn.functional as F

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


FORMULAS = {
    "max": lambda a: a.max(1).values,
    "max of all": lambda a: a.max(),
    "mode": lambda a: a.mode(0).values,
    "sort": lambda a: a.sort(0).values,
    "topk": lambda a: a.topk(2, 0).values,
    "index_select": lambda a: a.index_select(0, torch.tensor([1, 0, 0])),
    "index": lambda a: a[torch.tensor([1, 0, 0])],
    "gather": lambda a: a.gather(0, torch.tensor([[0, 1]])),
    "take": lambda a: a.take(torch.tensor([1, 3])),
    "trace": lambda a: a.trace(),
    "split": lambda a: a.split_with_sizes([1, 2])[1],
    "repeat": lambda a: torch.cat([a.repeat(2, 0), a.repeat(2, 2)], 1),
    "masked_fill": lambda a: a.masked_fill(a > 0, a[0, 0]),
    "logits": lambda a: F.binary_cross_entropy_with_logits(a, a.detach().sigmoid()),
    "logits, weighted": lambda a: F.binary_cross_entropy_with_logits(
        a, a.detach().sigmoid(), weight=torch.ones(2), pos_weight=torch.ones(2), reduction="sum"
    ),
    "labels": lambda a: F.binary_cross_entropy(torch.full((3, 2), 0.5), a.sigmoid()),
}


@pytest.mark.parametrize("function", FORMULAS.values(), ids=FORMULAS)
def test_formulas_that_write_into_their_result(function):
    def step(compile, a):
        compile(function)(a).sum().backward()
        return a.grad._version

    check(step, leaf(3, 2))


FILLED = {
    "masked_fill": lambda a: torch.ones(2).masked_fill(torch.tensor([True, False]), a),
    "index_fill": lambda a: torch.ones(2).index_fill(0, torch.tensor([1]), a),
}


@pytest.mark.parametrize("function", FILLED.values(), ids=FILLED)
def test_formulas_that_are_ops_of_gradc(function):
    def step(compile, a):
        compile(function)(a).sum().backward()
        return a.grad._version

    check(step, leaf())


def test_a_view_of_a_gradient_that_is_added_to_before_it_reaches_its_leaf():
    def step(compile, a, d):
        compile(lambda a, d: F.linear(d @ a, a))(a.mT.contiguous().mT, d).square().sum().backward()
        return a.grad._version

    check(step, leaf(3, 3), leaf(2, 4, 3))
