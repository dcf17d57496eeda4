"""A step whose forward and backward are one plan: gradients as eager's, and eager's own way wherever that could not be."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import gradc
from gradc import native
from gradc.compiled_autograd import fast_backward_entry
from gradc.region import joined
from tests.oracle import check, constant, leaf
from tests.region.test_cse import Doubling, Keeping, part, slope

pytestmark = pytest.mark.skipif(not native.is_built(), reason="joined plans are the extension's")
NUM_CALLS = 7
NUM_JOINED = 4  # the first compiles, two run forward and backward one by one


def plain(x: Tensor, w: Tensor) -> Tensor:
    return (x @ w).tanh().square().mean()


def second_order(x: Tensor, w: Tensor) -> Tensor:
    (grad,) = torch.autograd.grad(F.silu(x @ w).sum(), x, create_graph=True)
    return grad.square().sum() + F.silu(x @ w).sum()


def written_in_between(x: Tensor, w: Tensor) -> Tensor:
    return (x @ w).add_(1).mul_(0.5).square().sum()


def written_into_parts(x: Tensor, w: Tensor) -> Tensor:
    """As the gates of an LSTM's cell: no schema says that these are views."""
    first, second = torch.unsafe_chunk(x @ w, 2, 1)
    return (first.sigmoid_() * second.tanh_()).sum()


def of_views(x: Tensor, w: Tensor) -> Tensor:
    return x.t()[1:].sin().sum() + w.t().reshape(-1)[2:].exp().sum()


def of_one(x: Tensor, w: Tensor) -> Tensor:
    """Gradients that are views of one number."""
    return x.sum() + w.sum()


def of_nothing_of_one(x: Tensor, w: Tensor) -> Tensor:
    return x.square().sum() + (w * 0).detach().sum()


def dropped(x: Tensor, w: Tensor) -> Tensor:
    return F.dropout(x @ w, 0.5).square().sum()


def normed(x: Tensor, w: Tensor) -> Tensor:
    mean, var = torch.zeros(4), torch.ones(4)
    return (F.batch_norm(x @ w, mean, var, training=True) * x @ w).sum() + mean.sum()


def doubled(x: Tensor, w: Tensor) -> Tensor:
    return Doubling.apply(x @ w).sum()


def kept(x: Tensor, w: Tensor) -> Tensor:
    return Keeping.apply(x @ w).sum()


def sum_of_slopes(x: Tensor, w: Tensor) -> Tensor:
    return slope(x, w) + part(x, w).sum()


JOINED: list[Callable[[Tensor, Tensor], Tensor]] = [
    plain, second_order, written_in_between, written_into_parts, of_views, of_one, of_nothing_of_one, sum_of_slopes,
]  # fmt: skip
APART: list[Callable[[Tensor, Tensor], Tensor]] = [dropped, normed, doubled, kept]


def as_step(function: Callable[[Tensor, Tensor], Tensor]) -> Callable[[Tensor, Tensor], Tensor]:
    def step(x: Tensor, w: Tensor) -> Tensor:
        loss = function(x, w)
        loss.backward()
        return loss.detach()

    return step


def train(function: Callable[[Tensor, Tensor], Tensor], between: Callable[..., Any] = lambda number, x, w: None) -> Any:
    """What the oracle compares: losses and gradients of all calls; they are cleared at times, and added up at others."""

    def run(compile: Any, x: Tensor, w: Tensor) -> list[Any]:
        step, seen = compile(as_step(function)), []
        for number in range(NUM_CALLS):
            seen.append(step(x, w))
            seen += [None if value.grad is None else value.grad.clone() for value in (x, w)]
            if number % 3:
                x.grad = w.grad = None
            between(number, x, w)
        return seen

    return run


def num_joined(run: Callable[[], Any]) -> int:
    before = native.extension.StraightLoss.num_joined()
    run()
    return native.extension.StraightLoss.num_joined() - before


def leaves() -> tuple[Tensor, Tensor]:
    return torch.randn(4, 4, requires_grad=True), torch.randn(4, 4, requires_grad=True)


@pytest.mark.parametrize("function", [*JOINED, *APART], ids=lambda function: function.__name__)
def test_as_eager(function):
    check(train(function), leaf(4, 4), leaf(4, 4), allow_fallback=True)


@pytest.mark.parametrize("function", [*JOINED, *APART], ids=lambda function: function.__name__)
def test_what_only_makes_values_is_joined(function):
    number = num_joined(lambda: train(function)(gradc.compile, *leaves()))
    assert number == (NUM_JOINED if function in JOINED else 0)


def test_constants_that_are_written_into():
    def counted(compile, x, w, count):
        @compile
        def step(x, w, count):
            count.add_(1)
            loss = (x @ w * count).sum()
            loss.backward()
            return loss.detach()

        return [(step(x, w, count), x.grad.clone(), count.clone()) for _ in range(NUM_CALLS)]

    check(counted, leaf(4, 4), leaf(4, 4), constant(4, 4), allow_fallback=True)
    assert num_joined(lambda: counted(gradc.compile, *leaves(), torch.ones(4, 4))) == 0


@pytest.mark.parametrize("are_large", [True, False])
def test_large_values_stay_apart(monkeypatch, are_large):
    """Two gradients of 64 bytes, a loss, and what tanh and the square save."""
    monkeypatch.setattr(joined, "MOST_BYTES", 2 * 64 + 4 + 64 - are_large)
    assert num_joined(lambda: train(plain)(gradc.compile, *leaves())) == (0 if are_large else NUM_JOINED)


@pytest.mark.parametrize("kind", ["tensor", "post"])
def test_a_hook_that_comes_later(kind):
    def between(number, x, w):
        if number == 4 and kind == "tensor":
            x.register_hook(lambda grad: grad * 2)
        if number == 4 and kind == "post":
            w.register_post_accumulate_grad_hook(lambda leaf: leaf.grad.mul_(3))

    check(train(plain, between), leaf(4, 4), leaf(4, 4), allow_fallback=True)


@pytest.mark.parametrize("change", ["none", "written", "of other memory", "float64", "frozen"])
def test_leaves_that_change(change):
    def between(number, x, w):
        with torch.no_grad():
            if number == 4 and change == "written":
                w.mul_(2)
            if number == 4 and change == "of other memory":
                w.data = w.data.t().contiguous().t()
            if number == 4 and change == "float64":
                x.data, w.data = x.data.double(), w.data.double()
                x.grad = w.grad = None
        if number == 4 and change == "frozen":
            w.requires_grad_(False)

    check(train(second_order, between), leaf(4, 4), leaf(4, 4), allow_fallback=True)


def test_where_backward_cannot_take_them_the_forward_runs_again(monkeypatch):
    """Something may come up between the two that wants nodes."""
    x, w = leaves()
    step, results = gradc.compile(as_step(second_order)), []
    for number in range(NUM_CALLS):
        monkeypatch.setattr(fast_backward_entry, "is_left_to_torch", lambda _: number != 5)
        x.grad = w.grad = None
        results.append((num_joined(lambda: step(x, w)), x.grad.clone(), w.grad.clone()))
    assert [number for number, *_ in results] == [0, 0, 0, 1, 1, 0, 0]
    for _, *grads in results:
        assert [grad.tolist() for grad in grads] == [grad.tolist() for grad in results[0][1:]]


@pytest.mark.parametrize("is_left", [True, False])
def test_what_is_written_into_on_the_way_is_told(monkeypatch, is_left):
    """As eager tells it; or where eager would go on with what it had made before, that this cannot be."""
    x, w = leaves()
    step = gradc.compile(as_step(plain))

    def write(_: bool) -> bool:
        with torch.no_grad():
            w.mul_(2)
        return is_left

    for _ in range(5):
        step(x, w)
    monkeypatch.setattr(fast_backward_entry, "is_left_to_torch", write)
    with pytest.raises(RuntimeError, match="modified by an inplace operation" if is_left else "somebody wrote into a tensor"):
        step(x, w)


def test_backward_of_the_users_that_comes_later():
    x, w = leaves()
    step, original, calls = gradc.compile(as_step(plain)), Tensor.backward, []
    for _ in range(5):
        step(x, w)
    expected, x.grad = x.grad / 5, None

    def backward(self: Tensor, *args: Any, **kwargs: Any) -> None:
        calls.append(self.grad_fn is not None)
        original(self, *args, **kwargs)

    Tensor.backward = backward
    try:
        step(x, w)
    finally:
        Tensor.backward = original
    assert calls == [True] and torch.allclose(x.grad, expected)


def test_the_sum_for_a_leaf_is_laid_out_as_the_engines():
    """Two gradients of one leaf that lie apart are added up before the leaf sees any."""

    def both_ways(compile, x):
        @compile
        def step(x):
            loss = torch.atan2(x.reciprocal().clamp(-2, 2), x).sin().sum() + x.movedim(0, -1).sin().sum()
            loss.backward()

        grads = []
        for _ in range(NUM_CALLS):
            x.grad = None
            step(x)
            grads.append(x.grad)
        return grads

    check(both_ways, leaf(3, 1), allow_fallback=True)


def test_gradients_keep_nothing_of_the_forward():
    """A gradient that the user keeps holds its own memory, and no more."""
    x, w = leaves()
    step = gradc.compile(as_step(second_order))
    for _ in range(NUM_CALLS):
        x.grad = w.grad = None
        step(x, w)
    for grad in (x.grad, w.grad):
        assert grad.untyped_storage().nbytes() == 64 and grad.grad_fn is None and not grad.requires_grad
