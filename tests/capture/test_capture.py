"""A captured backward is eager's: gradients, Nones, identities, errors, generator state."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import gradc
from gradc import compiled_autograd
from gradc.bits import same_bits
from tests.capture.steps import Step, check, grads, leaf, model_step
from tests.observe import same_with_strides

pytestmark = pytest.mark.usefixtures("nothing_captured")


def test_mlp() -> None:
    check(lambda: model_step(nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3)), 5, 4))


def test_gradients_accumulate_in_place() -> None:
    def make() -> Step:
        model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
        run = model_step(model, 5, 4, zero=False)

        def step(i: int) -> Any:
            before = [p.grad for p in model.parameters()]
            result = run(i)
            after = [p.grad for p in model.parameters()]
            return [result, [i == 0 or a is b for a, b in zip(before, after)]]

        return step

    check(make, steps=5, captures=2)


def test_convolution_norm_dropout() -> None:
    def make() -> Step:
        layers = [nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(0.3), nn.Flatten(), nn.Linear(64, 5)]
        return model_step(nn.Sequential(*layers), 2, 3, 6, 6)

    check(make)


def test_transformer_layer() -> None:
    check(lambda: model_step(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2, 5, 8), steps=3)


def test_lstm_and_tied_weights() -> None:
    def make() -> Step:
        cell, tied = nn.LSTMCell(4, 4), nn.Linear(4, 4)

        def step(i: int) -> Any:
            h = c = torch.zeros(2, 4)
            for _ in range(3):
                h, c = cell(tied(torch.randn(2, 4)), (tied(h), c))
            h.sum().backward()
            parameters = [*cell.parameters(), *tied.parameters()]
            result = [p.grad.clone() for p in parameters if p.grad is not None]
            versions = [p.grad._version for p in parameters if p.grad is not None]
            for p in parameters:
                p.grad = None
            return [result, versions]

        return step

    check(make)


def test_autograd_grad() -> None:
    def make() -> Step:
        w = leaf(3, 3)

        def step(i: int) -> Any:
            x = leaf(2, 3, seed=i)
            y = (x @ w).tanh()
            z = y * y
            return [*torch.autograd.grad(z.sum(), [x, y, w], retain_graph=True), w.grad]

        return step

    check(make)


def test_autograd_grad_allow_unused_and_unused_error() -> None:
    def make() -> Step:
        def step(i: int) -> Any:
            x, unused = leaf(3), leaf(2)
            result = list(torch.autograd.grad(x.sin().sum(), [x, unused], allow_unused=True))
            with pytest.raises(RuntimeError, match="appears to not have been used"):
                torch.autograd.grad(x.sin().sum(), [x, unused])
            return result

        return step

    check(make, captures=None)


def test_backward_inputs() -> None:
    def make() -> Step:
        def step(i: int) -> Any:
            x, w = leaf(3, seed=i), leaf(3, seed=9)
            y = x * w
            y.exp().sum().backward(inputs=[x])
            return grads(x, w)

        return step

    check(make)


def test_backward_inputs_non_leaf() -> None:
    def make() -> Step:
        def step(i: int) -> Any:
            x = leaf(3, seed=i)
            y = x * 2
            y.exp().sum().backward(inputs=[y])
            return [x.grad, y.grad]

        return step

    check(make)


def test_multiple_roots_and_given_gradients() -> None:
    def make() -> Step:
        def step(i: int) -> Any:
            x = leaf(3, seed=i)
            y = x.sin()
            z = y * x
            torch.autograd.backward([z, y, x], [torch.full((3,), 2.0), torch.ones(3), torch.ones(3)])
            return grads(x)

        return step

    check(make)


def test_retain_graph_then_freed() -> None:
    def make() -> Step:
        def step(i: int) -> Any:
            x = leaf(3, seed=i)
            loss = x.exp().sum()
            loss.backward(retain_graph=True)
            loss.backward()
            with pytest.raises(RuntimeError, match="second time"):
                loss.backward()
            return grads(x)

        return step

    check(make, captures=None)


def test_modified_saved_tensor_raises() -> None:
    def make() -> Step:
        def step(i: int) -> Any:
            x = leaf(3)
            y = x.exp()
            loss = y.sum()
            with torch.no_grad():
                y.mul_(2)
            with pytest.raises(RuntimeError, match="modified by an inplace operation"):
                loss.backward()
            return grads(x)

        return step

    check(make, captures=0)


def test_sparse_embedding() -> None:
    def make() -> Step:
        table = nn.Embedding(5, 3, sparse=True)

        def step(i: int) -> Any:
            table.zero_grad()
            table(torch.tensor([1, 2, 1, i % 4])).exp().sum().backward()
            return [table.weight.grad.clone()]

        return step

    check(make, captures=None)


def test_views_slices_and_indexing() -> None:
    def make() -> Step:
        def step(i: int) -> Any:
            x, index = leaf(4, 4, seed=i), torch.tensor([0, 2, 2])
            y = x.clone()
            y[0].mul_(3)
            y[:, 1] = x[:, 2] * 2
            z = y[index] + torch.cat([x[:2], x[3:]])[:3] + torch.stack([x[0], x[1], x[2]])
            z.masked_fill(z > 0.5, 0.25).logsumexp(1).sum().backward()
            return grads(x)

        return step

    check(make)


def test_saved_tensors_are_freed() -> None:
    def run() -> bool:
        x = leaf(3)
        y = x.exp()
        saved = weakref.ref(y.untyped_storage())
        loss = y.sum()
        del y
        loss.backward()
        gc.collect()
        return saved() is None

    with compiled_autograd.enable():
        assert [run() for _ in range(3)][1:] == [True, True]  # what is captured is held until the capture is done


def test_threads_share_recordings() -> None:
    import threading

    results: list[Any] = []

    def work(seed: int) -> None:
        with compiled_autograd.enable():
            for i in range(20):
                x = leaf(4, 4, seed=seed * 100 + i)
                x.exp().sum().backward()
                results.append(x.grad is not None and same_bits(x.grad, x.detach().exp()))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [True] * 60


def test_off_by_default_and_disable() -> None:
    leaf(3).exp().sum().backward()
    with compiled_autograd.enable(), compiled_autograd.disable():
        leaf(3).exp().sum().backward()
    assert not gradc.counters["compiled_autograd"]
    with gradc.config.patch(compiled_autograd=True):
        leaf(3).exp().sum().backward()
    assert gradc.counters["compiled_autograd"]["captures"] == 1


def test_node_with_thousands_of_edges() -> None:
    def make() -> Step:
        def step(i: int) -> Any:
            x = leaf(2, seed=i)
            torch.stack([x] * 3000).exp().sum().backward()
            return grads(x)

        return step

    check(make, captures=0, fallbacks=("node with thousands of edges",))


def test_over_a_derivative_that_cannot_be_traced() -> None:
    """Its nodes are live ones with no Program behind them. Found by the fuzzer."""
    f = gradc.compile(lambda x: x.cumprod(0).sin())

    def grads_of(f: Callable[..., Any]) -> Any:
        x = leaf(5)
        (first,) = torch.autograd.grad(f(x).sum(), x, create_graph=True)
        with compiled_autograd.enable():
            first.square().sum().backward()
        return first.detach(), x.grad

    expected = grads_of(lambda x: x.cumprod(0).sin())
    for _ in range(3):
        assert same_with_strides(expected, grads_of(f))
    assert gradc.counters["fallbacks"] == {"derivative that cannot be traced": 3}
