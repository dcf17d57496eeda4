"""Derivatives that run on the real tensors: eager's formulas under create_graph, where fake tensors take another path."""

import gc
import weakref

import pytest
import torch
from torch import nn

import gradc
from tests.oracle import check, leaf

grad = torch.autograd.grad
LIVE = {"derivative that cannot be traced"}


def second_order(function):
    """A step: gradients of ``function(x, w)`` and of these, with respect to inputs and tangents."""

    def step(compile, x, w):
        outputs = compile(function)(x, w)
        outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        tangents = [torch.randn_like(out).requires_grad_() for out in outputs]
        first = grad(outputs, (x, w), tangents, create_graph=True, allow_unused=True)
        first = [g for g in first if g is not None]
        second = grad(first, (x, w, *tangents), [torch.randn_like(g) for g in first], create_graph=True, allow_unused=True)
        third = [g for g in second if g is not None and g.requires_grad]
        return first, second, grad([g.sum() for g in third], (x, w), allow_unused=True)

    return step


@pytest.mark.parametrize(
    "function",
    [
        lambda x, w: torch.linalg.det(x) * w,
        lambda x, w: (x @ w).prod().sin(),
        lambda x, w: (x * x.square().cumprod(0), w.tanh()),
        lambda x, w: torch.linalg.householder_product(x, w[0]) @ w,
        lambda x, w: torch.linalg.eigh(x + x.mT)[1].abs() * w,
        lambda x, w: x.scatter_reduce(0, torch.tensor([[0, 1, 0, 1]]), w[:1] * x[:1], "prod").tanh(),
        lambda x, w: x.index_reduce(0, torch.tensor([0, 2, 1]), w[:3] * x[1:], "prod"),
    ],
)
def test_three_orders(function):
    square = leaf(4, 4, dtype=torch.float64)
    report = check(second_order(function), square, square, allow_fallback=True)
    assert set(report.fallbacks) == LIVE


def test_used_outside_too():
    """Gradients of one leaf that come from the live nodes, from the region's other nodes and from eager ones."""

    def step(compile, x, w):
        y = compile(lambda x, w: ((x @ w).cumprod(0), x.sin() * w))(x, w)
        first = grad([*y, (x * w).exp()], (x, w), [torch.ones_like(x)] * 3, create_graph=True)
        sum(g.square().sum() for g in first).backward()

    report = check(step, leaf(4, 4), leaf(4, 4), allow_fallback=True)
    assert set(report.fallbacks) == LIVE


def test_under_autocast():
    def step(compile, x, w):
        with torch.autocast("cpu", torch.bfloat16):
            y = compile(lambda x, w: (x @ w).prod().sin())(x, w)
        (first,) = grad(y, x, create_graph=True)
        with torch.autocast("cpu", torch.bfloat16):
            first.square().sum().backward()

    report = check(step, leaf(4, 4), leaf(4, 4), allow_fallback=True)
    assert set(report.fallbacks) == LIVE


def test_a_loss_that_depends_on_the_phase_of_eigenvectors_raises():
    def step(compile, x):
        compile(lambda x: torch.linalg.eig(x)[1].real.sum())(x).backward()

    report = check(step, leaf(4, 4), compare_messages=True, allow_fallback=True)
    assert report.eager.error is not None and report.fallbacks


def test_nothing_is_kept():
    f = gradc.compile(lambda x: x.cumprod(0).sin())
    x = torch.randn(4, 4, requires_grad=True)
    (first,) = grad(f(x).sum(), x, create_graph=True)
    (second,) = grad(first.square().sum(), x)
    kept = [weakref.ref(value) for value in (first, first.grad_fn)]
    del first, second
    gc.collect()
    assert [value() for value in kept] == [None, None]


@pytest.mark.parametrize("shape", [(3, 1), (1, 3), (3, 0), (1, 1)])
def test_sums_with_views_of_odd_strides(shape):
    """Eager adds to a gradient in place unless it is a view; strides that no element depends on tell the difference."""

    def step(compile, x, w):
        y = compile(lambda x, w: (x.mT @ w).tanh())(x, w)
        tangent = torch.randn_like(y).requires_grad_()
        first = grad([y, x.mT.contiguous()], (x, w), [tangent, torch.ones_like(x.mT)], create_graph=True)
        second = grad(first, (x, w, tangent), [torch.randn(g.shape) for g in first])
        ((x * 2).sum() + y.sum()).backward()
        return first, second

    check(step, leaf(*shape), leaf(shape[0], 2))


@pytest.mark.parametrize("values", [torch.ones(1, 2), torch.ones(3, 2)])
def test_a_backward_that_asks_for_values(values):
    def step(compile, x):
        mask = torch.tensor([True, False, True, True])
        compile(lambda x, v: x.sin().index_put((mask,), v * 2))(x, values.clone().requires_grad_()).sum().backward()

    report = check(step, leaf(4, 2), allow_fallback=True)
    assert report.fallbacks


def test_nodes_behind_a_derivative_that_ask_for_sizes():
    """The engine visits a batch norm's second derivative for nothing, and it asked what was not there for its sizes."""

    def step(compile, net):
        @compile
        def slopes(x):
            x = x.clone().requires_grad_()
            out = net(x)
            x.register_hook(lambda grad: grad * 2)  # so that gradients are asked for eagerly
            (slope,) = torch.autograd.grad(out.square().sum(), x, create_graph=True)
            (bend,) = torch.autograd.grad(slope.sum(), x, create_graph=True)
            return slope, bend.sin().sum()

        results = [slopes(torch.randn(size, 4)) for size in (4, 6, 5)]
        sum(bend for _, bend in results).backward()
        return results

    report = check(step, lambda: nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)), allow_fallback=True)
    assert set(report.fallbacks) >= LIVE


def test_sums_written_over_a_gradient_from_outside():
    """A segment runs eagerly, as a zero comes to it that is none yet: a sum keeps the strides of the gradient before it."""

    def step(compile, x):
        @compile
        def f(x):
            y = torch.nn.functional.leaky_relu(x.mT, 0.1)
            return y - torch.sqrt(y.abs() + 1)

        (first,) = torch.autograd.grad(f(x).square().sum(), x, create_graph=True)
        return first, *torch.autograd.grad(first.square().sum(), x)

    report = check(step, leaf(3, 1), allow_fallback=True)
    assert "gradient that is a lazy zero" in report.fallbacks
