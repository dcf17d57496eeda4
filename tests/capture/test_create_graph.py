"""Under create_graph=True a pass is captured where it leaves no graph behind, and is eager's own work where it does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import gradc
from gradc import compiled_autograd
from tests.capture.steps import check, leaf

pytestmark = pytest.mark.usefixtures("nothing_captured")

Function = Callable[[torch.Tensor], torch.Tensor]
FACTORS = torch.arange(3.0)


def slope(f: Function, x: torch.Tensor, **options: Any) -> torch.Tensor:
    return torch.autograd.grad(f(x).sum(), x, create_graph=True, **options)[0]


def seen(grad: torch.Tensor) -> tuple[Any, ...]:
    """What the user's code can ask of a gradient."""
    base = grad._base
    return grad, grad.requires_grad, grad._version, grad._is_view(), base is not None and base.stride(), type(grad.grad_fn)


def sum_of_ways(x: torch.Tensor) -> torch.Tensor:
    return (x * FACTORS).sum() + x.mT[:1].sum() + x.mean()


@pytest.mark.parametrize(
    "f",
    [
        lambda x: x * 2,
        lambda x: x.t()[:2] * FACTORS,
        lambda x: x.expand(2, 3, 3) @ torch.ones(3, 2),
        lambda x: torch.where(FACTORS > 1, x, 0) - x[1],
        sum_of_ways,
    ],
    ids=["product", "view", "matmul", "where", "sums"],
)
def test_pass_that_leaves_no_graph_is_captured(f: Function) -> None:
    check(lambda: lambda i: seen(slope(f, leaf(3, 3, seed=i))))


def test_size_1_keeps_the_strides_of_a_sum_that_is_not_written_over() -> None:
    check(lambda: lambda i: slope(lambda a: a.mT.sum() + a.mT.mean() + (a * FACTORS).sum(), leaf(1, 3, seed=i)).stride())


def test_pass_that_leaves_a_graph_is_counted() -> None:
    def step(i: int) -> Any:
        x = leaf(3, seed=i)
        grad = slope(torch.tanh, x)
        return seen(grad), torch.autograd.grad(grad.sum(), x)

    check(lambda: step, captures=1, fallbacks=("create_graph",))  # the second pass, through the graph that the first left


def test_gradient_that_requires_a_gradient_is_counted() -> None:
    def step(i: int) -> Any:
        x, v = leaf(3, seed=i), leaf(3, seed=i + 9)
        (grad,) = torch.autograd.grad(x * 2, x, v, create_graph=True)
        return seen(grad), torch.autograd.grad(grad.sum(), v)

    check(lambda: step, captures=1, fallbacks=("create_graph",))


def test_saved_tensor_of_a_hooked_node_that_requires_a_gradient_is_counted() -> None:
    def step(i: int) -> Any:
        x = leaf(3, seed=i)
        y = x * x
        y.register_hook(lambda grad: grad * 2)
        return seen(torch.autograd.grad(y.sum(), x, create_graph=True)[0])

    check(lambda: step, captures=0, fallbacks=("create_graph",))


def test_same_graph_with_and_without() -> None:
    def step(i: int) -> Any:
        y, x = (x := leaf(3, 1, seed=i)).mT.sum() + x.mT.mean(), x
        return torch.autograd.grad(y, x, create_graph=i % 2 == 0)[0].stride()

    check(lambda: step, captures=2)


def test_hooks_run_in_grad_mode() -> None:
    def step(i: int) -> Any:
        x, modes = leaf(3, seed=i), []
        y = x * 2
        y.register_hook(lambda grad: modes.append((torch.is_grad_enabled(), grad.requires_grad)))
        y.register_hook(lambda grad: grad * 3)
        return seen(torch.autograd.grad((y * FACTORS).sum(), x, create_graph=True)[0]), modes

    check(lambda: step)


@pytest.mark.parametrize("leaves_graph", [lambda i: i >= 2, lambda i: i < 2], ids=["later", "first"])
def test_hook_that_leaves_a_graph(leaves_graph: Callable[[int], bool]) -> None:
    def step(i: int) -> Any:
        x, w = leaf(3, seed=i), leaf(3, seed=i + 9)
        y = x * 2
        y.register_hook(lambda grad: grad * w if leaves_graph(i) else grad * FACTORS)
        (grad,) = torch.autograd.grad((y * FACTORS).sum(), x, create_graph=True)
        return seen(grad), torch.autograd.grad(grad.sum(), w) if grad.requires_grad else ()

    check(lambda: step, captures=None, fallbacks=("graph that cannot be captured",) if leaves_graph(0) else ())


def test_history_of_what_a_hook_returned_goes_on_in_the_first_run() -> None:
    def step(i: int) -> Any:
        x, w = leaf(3, seed=i), leaf(3, seed=i + 9)
        y = x * 2
        z = y * FACTORS
        z.register_hook(lambda grad: grad * w)
        (grad,) = torch.autograd.grad(z.sum(), x, create_graph=True)
        return seen(grad), torch.autograd.grad(grad.sum(), w)

    check(lambda: step, captures=None, fallbacks=("graph that cannot be captured",))


def test_hook_that_makes_a_saved_tensor_require_a_gradient() -> None:
    def step(i: int) -> Any:
        x, factors = leaf(3, seed=i), torch.full((3,), 2.0)
        y = (x * factors) * 3
        y.register_hook(lambda grad: None if i == 0 else factors.requires_grad_().grad)
        return seen(torch.autograd.grad(y.sum(), x, create_graph=True)[0])

    check(lambda: step)


def test_written_afterwards_as_in_eager() -> None:
    def step(i: int) -> Any:
        x, w = leaf(3, 2, seed=i), leaf(3, 2, seed=i + 9)
        return seen(slope(lambda x: x.t() * torch.arange(6.0).view(2, 3), x).mul_(w))

    check(lambda: step)


def test_under_no_grad_and_with_the_graph_freed() -> None:
    def step(i: int) -> Any:
        x = leaf(3, seed=i)
        y = (x * FACTORS).sum()
        with torch.no_grad():
            (grad,) = torch.autograd.grad(y, x, create_graph=True, retain_graph=False)
        try:
            torch.autograd.grad(y, x, create_graph=True)
        except RuntimeError as error:
            return seen(grad), str(error)

    check(lambda: step)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_under_autocast(dtype: torch.dtype) -> None:
    def step(i: int) -> Any:
        x = leaf(3, 3, seed=i)
        with torch.autocast("cpu", dtype):
            return seen(slope(lambda x: (x @ torch.ones(3, 3)) * FACTORS + x, x))

    check(lambda: step)


def test_sizes_that_change() -> None:
    check(lambda: lambda i: seen(slope(lambda x: x.mT @ torch.ones(len(x), 2), leaf(2 + i, 3))), steps=8, captures=2)


def test_leaf_that_accumulates_is_counted() -> None:
    def step(i: int) -> Any:
        x = leaf(3, seed=i)
        x.mul(2).sum().backward(create_graph=True)
        return seen(x.grad)

    check(lambda: step, captures=0, fallbacks=("create_graph",))


def test_compiler_of_the_users_is_not_asked() -> None:
    with compiled_autograd.enable(gradc.compile(backend="eager")):
        slope(lambda x: x * 2, leaf(3))
    assert gradc.counters["fallbacks"] == {"compiled autograd: create_graph": 1}
