"""Sums of gradients: added up where the addends are, and written over one that nobody reads any more."""

import torch

from gradc.bits import same_bits
from gradc.executor.core import interpret
from gradc.ir.verify import verify
from gradc.passes.sums import add_in_place, add_up
from tests.ir.build import ops, recorded


def in_place(function, *inputs):
    made = add_in_place(recorded(function, *inputs))
    verify(made)
    for result, expected in zip(interpret.lower(made)([x.clone() for x in inputs]), function(*inputs), strict=True):
        assert same_bits(result, expected)
    return ops(made)


X = torch.arange(4.0).reshape(2, 2)


def test_a_sum_is_written_over_an_addend_that_is_read_last():
    assert in_place(lambda x, y: (x.mm(x) + y,), X, X) == ["mm", "add_"]


def test_not_over_an_addend_that_is_read_later():
    assert in_place(lambda x, y: ((m := x.mm(x)) + y, m.sin()), X, X) == ["mm", "add", "sin"]


def test_not_over_an_input():
    assert in_place(lambda x, y: (x + y,), X, X) == ["add"]


def test_not_over_an_addend_of_which_a_view_is_read_later():
    def step(x, y):
        product = x.mm(x)
        view = product.view(4)
        return product + y, view.sin()

    assert in_place(step, X, X) == ["mm", "view", "add", "sin"]


def test_not_over_an_addend_whose_memory_another_tensor_was_given():
    def step(x, y):
        product, other = x.mm(x), torch.empty(0)
        other.set_(product)
        return product + y, other.sin()

    assert in_place(step, X, X) == ["mm", "empty", "detach", "set_", "add", "sin"]


def test_not_over_a_sum_of_which_a_view_is_read_later():
    """The first sum is written over the product; its view is then one of the product's memory too."""

    def step(x, y):
        total = x.mm(x) + y
        view = total.view(4)
        return total + y, view.sin()

    assert in_place(step, X, X) == ["mm", "add_", "view", "add", "sin"]


def test_outputs_of_a_group_are_added_up_in_order():
    made = add_up(recorded(lambda x, y: (x.mm(y), x.sin(), y.mm(x)), X, X), [(0, 2)])
    verify(made)
    assert ops(made) == ["mm", "sin", "mm", "add_"]
    total, sine, nothing = interpret.lower(made)([X, X])
    assert same_bits(total, X.mm(X) + X.mm(X)) and same_bits(sine, X.sin()) and nothing is None
