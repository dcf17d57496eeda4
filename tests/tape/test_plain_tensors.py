"""Kernels that take another way for tensor subclasses take eager's way when they are traced with fake tensors."""

import operator

import pytest
import torch
from torch.nn import functional

from tests.oracle import check, constant, indices, leaf

PRODUCTS = {
    "operator": operator.matmul,
    "function": torch.matmul,
    "method": lambda a, b: a.matmul(b),
    "in torch.linalg": torch.linalg.matmul,
}


def product_of(multiply):
    def step(compile, a, b):
        result = compile(multiply)(a, b)
        if result.requires_grad:
            result.square().sum().backward()
        return result

    return step


@pytest.mark.parametrize("multiply", PRODUCTS.values(), ids=PRODUCTS)
def test_a_batch_times_one_matrix_is_not_folded(multiply):
    report = check(product_of(multiply), leaf(4, 3, 3), constant(1, 3, 3))
    assert not report.fallbacks


@pytest.mark.parametrize("requires_grad", [(True, True), (False, True), (False, False)])
@pytest.mark.parametrize("shapes", [((6, 5, 9), (1, 9, 7)), ((1, 5, 9), (6, 9, 7))])
def test_products_that_broadcast(shapes, requires_grad):
    makers = [leaf(*shape, requires_grad=needed) for shape, needed in zip(shapes, requires_grad)]
    assert not check(product_of(operator.matmul), *makers).fallbacks


def test_a_batch_of_symbolic_size_times_one_matrix():
    def step(compile, a, b, c):
        product = compile(operator.matmul)
        return [product(batch, c) for batch in (a, b, b * 2)]

    assert not check(step, leaf(4, 3, 3), leaf(7, 3, 3), constant(1, 3, 3)).fallbacks


def test_a_batch_times_one_matrix_under_autocast():
    def step(compile, a, b):
        with torch.autocast("cpu", torch.bfloat16):
            result = compile(operator.matmul)(a, b)
        result.square().sum().backward()
        return result

    assert check(step, leaf(4, 3, 3), constant(1, 3, 3), allow_fallback=True).fallbacks == {
        "product of a batch and one matrix under autocast": 1
    }


def test_smoothed_cross_entropy_with_weights_divides_by_a_selection():
    def step(compile, x, target, weight):
        target = target.index_fill(0, torch.arange(0, 50, 3), -100)
        loss = compile(lambda x, t, w: functional.cross_entropy(x, t, w, label_smoothing=0.1))(x, target, weight.abs())
        loss.backward()
        return loss

    assert check(step, leaf(50, 7), indices(50, high=7), constant(7), allow_fallback=True).fallbacks == {
        "smoothed cross entropy with weights": 1
    }


def test_cross_entropy_with_weights_is_compiled():
    def step(compile, x, target, weight):
        loss = compile(lambda x, t, w: functional.cross_entropy(x, t, w))(x, target, weight.abs())
        loss.backward()
        return loss

    assert not check(step, leaf(50, 7), indices(50, high=7), constant(7)).fallbacks


def test_attention_of_three_dimensions_that_broadcasts():
    def step(compile, q, k):
        result = compile(lambda q, k: functional.scaled_dot_product_attention(q, k, k))(q, k)
        result.sum().backward()
        return result

    assert check(step, leaf(4, 8, 5), constant(1, 6, 5), allow_fallback=True).fallbacks == {
        "attention of 3 dimensions that broadcasts": 1
    }
