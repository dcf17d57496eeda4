"""Strides and dtypes as kernels give them, where fake tensors have others."""

import copy

import pytest
import torch

import gradc
from gradc.ir import layouts
from gradc.torch_private.fakes import FakeTensorMode
from tests.oracle import check, leaf

bf16 = torch.bfloat16


def test_fake_tensors_are_still_wrong():
    """Without this there would be nothing to correct."""
    with FakeTensorMode():
        product = torch.empty((), dtype=bf16).expand(2, 3) * torch.empty(3, 2, dtype=bf16).t()
    assert product.stride() == (3, 1)
    assert (torch.empty((), dtype=bf16).expand(2, 3) * torch.empty(3, 2, dtype=bf16).t()).stride() == (1, 2)


@pytest.mark.parametrize("backend", ["replay", "eager"])
def test_product_of_an_expanded_and_a_transposed_tensor(backend):
    def step(compile, e, x):
        product = compile(lambda e, x: e.expand(2, 3) * x.t(), backend=backend)(e, x)
        product.sin().sum().backward()
        return product

    check(step, leaf(dtype=bf16), leaf(3, 2, dtype=bf16))


def test_gradient_of_a_sum_of_products():
    def step(compile, a, b):
        return torch.autograd.grad(compile(lambda a, b: (a.mT * b).sum())(a, b), (a, b))

    check(step, leaf(2, 3, dtype=bf16), leaf(3, 2, dtype=bf16))


NORMS = {
    "layer": torch.nn.LayerNorm(4),
    "batch": torch.nn.BatchNorm1d(4),
    "group": torch.nn.GroupNorm(2, 4),
    "RMS": torch.nn.RMSNorm(4),
}


def test_fake_tensors_have_another_dtype_of_what_a_norm_saves():
    """Without this there would be nothing to correct."""
    x, weight = torch.ones(2, 4, dtype=bf16), torch.ones(4)
    assert torch.native_layer_norm(x, [4], weight, weight, 1e-5)[1].dtype == torch.float32
    with FakeTensorMode() as mode:
        x, weight = mode.from_tensor(x), mode.from_tensor(weight)
        assert torch.native_layer_norm(x, [4], weight, weight, 1e-5)[1].dtype == bf16


@pytest.mark.parametrize("name", NORMS)
@pytest.mark.parametrize("order", [2, 3])
def test_higher_orders_of_a_norm_in_two_dtypes(name, order):
    """Silent before: as under autocast, a bfloat16 input and float32 weights; what the norm saves was taken for bfloat16."""

    def step(compile, norm, x):
        @compile
        def slopes(x):
            total = norm(x).square().sum()
            for _ in range(order - 1):
                (slope,) = torch.autograd.grad(total, x, create_graph=True)
                total = slope.square().sum()
            return total

        loss = slopes(x)
        loss.backward()
        return loss

    check(step, lambda: copy.deepcopy(NORMS[name]), leaf(6, 4, dtype=bf16), allow_fallback=True)


def test_large_arguments_are_asked_about_for_what_is_saved_alone(monkeypatch):
    """Of two dtypes a pointwise op gives the one that both promote to, as fake tensors say."""
    asked = []
    monkeypatch.setattr(layouts, "MAX_ELEMENTS", 8)
    monkeypatch.setattr(layouts, "_ask", lambda op, *rest: asked.append(op.overloadpacket.__name__))
    norm = torch.nn.LayerNorm(4)
    run = gradc.compile(lambda x, y: norm(x) * y)
    run(torch.ones(3, 4, dtype=bf16), torch.ones(3, 4))
    assert asked and set(asked) == {"native_layer_norm"}


def test_draws_are_left_alone():
    def step(compile, x):
        y = compile(lambda x: torch.nn.functional.dropout(x.mT, 0.5))(x)
        y.sum().backward()
        return y, torch.rand(2)

    check(step, leaf(4, 6))


@pytest.mark.parametrize("rows", [2, 4, 5])
def test_strides_of_dimensions_of_size_1_beside_a_symbolic_size(rows):
    def step(compile, x, b):
        product = compile(lambda x, b: x[:, None, None] * b.mT, dynamic=True)(x, b)
        folded = compile(lambda b: b.mT.view(-1, 1, 4, 1).sin(), dynamic=True)(b)
        (product.sum() + folded.sum()).backward()
        return product, folded

    check(step, leaf(rows), leaf(rows, 4, 1))


def test_symbolic_sizes_run_eagerly():
    f = gradc.compile(lambda e, x: e.expand(x.shape[1], x.shape[0]) * x.t(), dynamic=True)
    gradc.reset()
    e, x = torch.randn((), dtype=bf16), torch.randn(3, 2, dtype=bf16)
    assert f(e, x).stride() == (1, 2)
    assert list(gradc.counters["fallbacks"]) == ["symbolic sizes of a tensor that its kernel lays out otherwise"]


def test_what_an_op_makes_that_writes_into_an_argument():
    """rrelu writes its noise, and its result is contiguous whatever its input: a view of it was made by other strides."""

    def step(compile, x):
        @compile
        def f(x):
            y = torch.nn.functional.rrelu(x, training=True)
            z = y.to(y.dtype)
            view = y.select(0, 0)
            z[0].mul_(2)
            return view

        y = f(x.mT.contiguous().mT)
        y.sum().backward()
        return y, torch.rand(2)

    check(step, leaf(2, 3, 4), allow_fallback=True)
