"""One recording serves other sizes: at most two captures, eager's bits at every size, and never a guess."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import gradc
from gradc import compiled_autograd
from gradc.bits import same_bits
from gradc.compiled_autograd.sessions import MAX_MISSES_AFTER_REFUSALS
from gradc.symbolic.terms import fit
from tests.observe import same_with_strides

SIZES = (4, 7, 1, 12, 4, 9, 0, 5)


pytestmark = pytest.mark.usefixtures("nothing_captured")


def counts() -> Any:
    return gradc.counters["compiled_autograd"]


def check(model: nn.Module, make: Callable[[int], torch.Tensor], sizes: tuple[int, ...] = SIZES, **settings: Any) -> None:
    """Gradients at each size, captured, against eager's, bit for bit."""
    for size in sizes:
        x = make(size)
        found = []
        for is_captured in (False, True):
            model.zero_grad()
            torch.manual_seed(1)
            loss = model(x).square().sum()
            with compiled_autograd.enable(**settings) if is_captured else compiled_autograd.disable():
                loss.backward()
            found.append([p.grad for p in model.parameters()])
        assert same_with_strides(*found), f"size {size}"


def mlp() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 3))


class Hidden(nn.Module):
    """``formula`` of what a linear layer makes."""

    def __init__(self, formula: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.linear, self.formula = nn.Linear(8, 4), formula

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.formula(self.linear(x))


def test_batch_sizes_need_two_captures() -> None:
    check(mlp(), lambda n: torch.randn(n, 8))
    assert counts()["captures"] == 2
    assert counts()["hits"] == len(SIZES) - 2


def test_starting_at_one_and_zero() -> None:
    check(mlp(), lambda n: torch.randn(n, 8), (1, 0, 3, 8, 5, 0, 1, 2))
    assert counts()["captures"] <= 3  # of sizes 0 and 1 alone, a size of 8 could not be foretold


def test_batch_size_that_equals_a_width() -> None:
    check(mlp(), lambda n: torch.randn(n, 8), (8, 5, 8, 3, 6))
    assert counts()["captures"] == 2


def test_two_sizes_change_apart() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.ReLU())
    shapes = {1: (2, 3, 8, 8), 2: (5, 3, 9, 7), 3: (3, 3, 6, 10), 4: (4, 3, 7, 7), 5: (6, 3, 5, 9)}
    check(model, lambda n: torch.randn(shapes[n]), (1, 2, 3, 4, 5))
    assert counts()["captures"] == 2


def test_numbers_in_formulas() -> None:
    """A fake mode cannot read the tensor that wraps a number."""
    check(Hidden(lambda hidden: 3 * hidden / 2.5 + 1), lambda n: torch.randn(n, 8))
    assert counts()["captures"] == 2


@pytest.mark.parametrize("norm, shape", [(nn.BatchNorm1d(8), (8,)), (nn.InstanceNorm2d(3, affine=True), (3, 4, 4))])
def test_norm_of_an_input_without_a_gradient(norm: nn.Module, shape: tuple[int, ...]) -> None:
    """Its kernel leaves out the gradient that nobody wants; its fake returns one."""
    check(norm, lambda n: torch.randn(n, *shape), (4, 8, 12, 5, 9))
    assert counts()["captures"] == 2


def test_sum_of_a_gradient_that_two_nodes_hold() -> None:
    """It is not added to in place. Symbolic sizes have no strides that C++ could compare."""
    model = Hidden(lambda hidden: hidden + hidden.tanh()[:, :1] + hidden)
    check(model, lambda n: torch.randn(n, 8), (4, 7, 12, 5, 9))
    assert counts()["captures"] == 2


def test_convolution_norm_pool() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(16, 2))
    check(model, lambda n: torch.randn(n, 3, 6, 6), (4, 7, 2, 12, 4, 9))
    assert counts()["captures"] == 2


@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_transformer_layer(dropout: float) -> None:
    model = nn.TransformerEncoderLayer(16, 2, 32, dropout=dropout, batch_first=True)
    check(model, lambda n: torch.randn(n, 6, 16), (4, 7, 12, 4, 9))
    assert counts()["captures"] == 2


def test_sequence_length() -> None:
    model = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
    check(model, lambda n: torch.randn(3, n, 16), (4, 7, 12, 5, 9))
    assert counts()["captures"] == 2


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.lstm(x)[0]


def test_lstm() -> None:
    check(Recurrent(), lambda n: torch.randn(5, n, 8), (4, 7, 2, 12, 4))
    assert counts()["captures"] == 2


def test_hooks_and_functions_between() -> None:
    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return 2 * x

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
            return 2 * grad

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Linear(8, 8), nn.Linear(8, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            hidden = self.first(x)
            hidden.register_hook(lambda grad: grad * 3)
            return self.last(Double.apply(hidden).tanh())

    check(Model(), lambda n: torch.randn(n, 8), (4, 7, 12, 5, 9))
    assert counts()["captures"] == 2
    assert not counts()["finished live"]


def test_leaf_of_changing_size_accumulates() -> None:
    for size in (3, 5, 2, 8):
        base = torch.randn(size, 4)
        grads = []
        for is_captured in (False, True):
            x = base.clone().requires_grad_()
            for _ in range(2):
                loss = (x.exp() * x[:, :2].sum()).sum()
                with compiled_autograd.enable() if is_captured else compiled_autograd.disable():
                    loss.backward()
            grads.append(x.grad)
        assert same_with_strides(*grads)
    assert counts()["captures"] == 4  # with and without an existing gradient, each twice


def test_dynamic_false_captures_each_size() -> None:
    check(mlp(), lambda n: torch.randn(n, 8), (4, 7, 12, 4), dynamic=False)
    assert counts()["captures"] == 3
    assert counts()["hits"] == 1


def test_dynamic_true_captures_once() -> None:
    check(mlp(), lambda n: torch.randn(n, 8), (4, 7, 12, 5, 1), dynamic=True)
    assert counts()["captures"] == 1


def test_a_formula_that_looks_at_sizes_is_captured_again() -> None:
    """sum_to_size: where the size is 1, backward takes another way, and the trace must not be used."""

    def step(rows: int) -> torch.Tensor | None:
        x, y = torch.ones(rows, 3).requires_grad_(), torch.arange(3.0).repeat(5, 1)
        loss = (x.expand(5, 3) * y).sum() if rows == 1 else (x * y[:rows]).sum()
        with compiled_autograd.enable():
            loss.backward()
        return x.grad

    for rows in (2, 4, 1, 3, 5, 1):
        grad = step(rows)
        expected = torch.arange(3.0)[None] * 5 if rows == 1 else torch.arange(3.0).repeat(rows, 1)
        assert same_with_strides(grad, expected)


def test_loss_scale_that_changes_each_step() -> None:
    weight = torch.randn(4, 4, requires_grad=True)
    x = torch.randn(2, 4)
    for step in range(6):
        scale = 2.0**step + 0.5
        (expected,) = torch.autograd.grad(((x @ weight).tanh().sum() * scale) / (step + 1.5), weight)
        with compiled_autograd.enable():
            (grad,) = torch.autograd.grad(((x @ weight).tanh().sum() * scale) / (step + 1.5), weight)
        assert same_bits(grad, expected)
    assert counts()["captures"] <= 2


@pytest.mark.parametrize("operation", [torch.mul, torch.div])
def test_scale_at_second_order(operation: Any) -> None:
    """Nodes of two orders hold one number: it changes for both."""
    x = torch.randn(3, 2, requires_grad=True)
    for scale in (2.0, 3.0, 5.0):
        found = []
        for is_captured in (False, True):
            (slope,) = torch.autograd.grad(operation(x, scale).sin().sum(), x, create_graph=True)
            with compiled_autograd.enable() if is_captured else compiled_autograd.disable():
                found.append(torch.autograd.grad(slope.square().sum(), x))
        assert same_with_strides(*found), scale
    assert counts()["captures"] <= 2


def test_fit() -> None:
    points = [[4, 32, 128, 7, 16], [7, 32, 224, 7, 49]]
    found = fit(points)
    assert len(found.sources) == 1
    assert [[term.at([point[0]]) for term in found.terms] for point in points] == points


def test_tracing_leaves_torch_s_compiled_autograd_usable() -> None:
    check(mlp(), lambda n: torch.randn(n, 8), (4, 7))
    model = mlp()
    with torch._dynamo.compiled_autograd._enable(torch.compile(backend="eager")):
        model(torch.randn(4, 8)).square().sum().backward()
    assert all(p.grad is not None for p in model.parameters())


class Apart(torch.autograd.Function):
    """Its gradient is a slice of something wider, whose strides are no product of sizes."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return torch.cat([grad, grad], dim=1)[:, : grad.shape[1]]


def test_sizes_that_no_trace_serves_are_not_captured_for_ever() -> None:
    weight = torch.ones((), requires_grad=True)
    for size in range(2, 22):
        with compiled_autograd.enable():
            (grad,) = torch.autograd.grad(Apart.apply((weight * torch.ones(size, size)).exp()).sum(), weight)
        assert same_bits(grad, torch.autograd.grad((weight * torch.ones(size, size)).exp().sum(), weight)[0])
    assert counts()["captures"] == MAX_MISSES_AFTER_REFUSALS
    assert gradc.counters["fallbacks"] == {"compiled autograd: sizes that differ at every step": 20 - counts()["captures"]}
