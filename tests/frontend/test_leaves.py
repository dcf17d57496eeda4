"""Leaves that a function makes before anything else: one graph holds the rest, and gradients, hooks and draws are eager's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.oracle import check, constant, leaf


def residual(net: nn.Module, t: Tensor, x: Tensor) -> Tensor:
    u = net(torch.cat([t, x], 1))
    u_t, u_x = torch.autograd.grad(u.sum(), (t, x), create_graph=True)
    (u_xx,) = torch.autograd.grad(u_x.sum(), x, create_graph=True)
    return (u_t + u * u_x - 0.1 * u_xx).square().mean()


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 1))


def cloned(net: nn.Module, t: Tensor, x: Tensor) -> Any:
    return residual(net, t.clone().requires_grad_(), x.clone().requires_grad_())


def returned(net: nn.Module, t: Tensor, x: Tensor) -> Any:
    t = t.clone().requires_grad_()
    return residual(net, t, x.clone().requires_grad_()), t


def drawn(net: nn.Module, t: Tensor, x: Tensor) -> Any:
    t = torch.rand(4, 1).requires_grad_()
    x = torch.rand_like(x).requires_grad_()
    return residual(net, t, x) + torch.rand(()), t, x


def detached(net: nn.Module, t: Tensor, x: Tensor) -> Any:
    return residual(net, t.detach().requires_grad_(), x[:, :1].detach().requires_grad_())


def used_before_and_behind(net: nn.Module, t: Tensor, x: Tensor) -> Any:
    other = t.clone()
    t = other.clone().requires_grad_()
    return residual(net, t, x.clone().requires_grad_()) + (other * x).sum(), other


def under_no_grad(net: nn.Module, t: Tensor, x: Tensor) -> Any:
    t, x = t.clone().requires_grad_(), x.clone().requires_grad_()
    with torch.no_grad():
        scale = net(torch.cat([t, x], 1)).mean()
    return scale * residual(net, t, x)


def of_a_changed_input(net: nn.Module, t: Tensor, x: Tensor) -> Any:
    t = t.clone()
    t.mul_(2)
    t.requires_grad_()
    return residual(net, t, x.clone().requires_grad_())


def by_factories(net: nn.Module, t: Tensor, x: Tensor) -> Any:
    t = torch.rand(4, 1, requires_grad=True)
    return residual(net, t, torch.linspace(-1, 1, 4)[:, None].requires_grad_()), t


def by_assignment(net: nn.Module, t: Tensor, x: Tensor) -> Any:
    t, x = t.clone(), 2 * torch.rand(4, 1) - 1
    t.requires_grad = True
    x.requires_grad = True
    return residual(net, t, x), x


def of_numbers(net: nn.Module, t: Tensor, x: Tensor) -> Any:
    x = torch.tensor([[0.5], [1.5]], requires_grad=True)
    return residual(net, torch.zeros(2, 1, requires_grad=True), x), x


MADE_FIRST = [
    cloned, returned, drawn, detached, used_before_and_behind, under_no_grad, by_factories, by_assignment, of_numbers,
]  # fmt: skip


def trained(function: Callable[..., Any], num_steps: int = 2) -> Callable[..., Any]:
    def step(compile: Any, net: nn.Module, t: Tensor, x: Tensor) -> Any:
        run = compile(function)
        results = []
        for _ in range(num_steps):
            result = run(net, t, x)
            (result[0] if isinstance(result, tuple) else result).backward()
            results.append(result)
        return results, [value.grad for value in result[1:]] if isinstance(result, tuple) else None

    return step


@pytest.mark.parametrize("function", MADE_FIRST, ids=lambda function: function.__name__)
def test_leaves_that_are_made_first_end_no_graph(function: Callable[..., Any]) -> None:
    report = check(trained(function), net, constant(4, 1), constant(4, 1))
    assert (report.num_graphs, report.fallbacks) == (1, {})


def test_what_else_is_called_before_ends_the_graph() -> None:
    assert check(trained(of_a_changed_input), net, constant(4, 1), constant(4, 1)).num_graphs == 2


def test_a_leaf_of_what_the_function_calculates() -> None:
    """As before: it is no first call."""

    def step(compile: Any, net: nn.Module, x: Tensor) -> Any:
        @compile
        def run(x: Tensor) -> tuple[Tensor, Tensor]:
            inner = net(x).detach().requires_grad_()
            return inner.sin().sum(), inner

        loss, inner = run(x)
        loss.backward()
        return loss, inner, inner.grad

    assert check(step, net, constant(4, 2)).num_graphs == 2


def test_hooks_of_a_leaf_and_what_it_is() -> None:
    def step(compile: Any, x: Tensor) -> Any:
        run = compile(made)
        loss, x = run(x)
        heard: list[Tensor] = []
        x.register_hook(heard.append)
        loss.backward()
        loss, _ = run(x.detach())
        loss.backward()
        return heard, x.grad, x.is_leaf, x._version

    def made(x: Tensor) -> tuple[Tensor, Tensor]:
        x = x.clone().requires_grad_()
        return x.sin().sum(), x

    assert check(step, constant(3)).fallbacks == {}


def test_a_write_into_memory_that_a_leaf_shares() -> None:
    """A region's inputs are taken to be apart: eager runs the rest, and says why."""

    def step(compile: Any, x: Tensor) -> Any:
        @compile
        def run(x: Tensor, scale: float) -> Tensor:
            inner = x.detach().requires_grad_()
            x.mul_(2)
            return (inner * scale).sum()

        losses = [run(x, scale) for scale in (0.5, 1.5, 2.5)]
        for loss in losses:
            loss.backward()
        return losses, x

    report = check(step, constant(3), allow_fallback=True)
    assert report.fallbacks == {"write into what shares memory with a leaf made inside": 3}


def test_sizes_that_change() -> None:
    def step(compile: Any, net: nn.Module) -> Any:
        run, results = compile(cloned), []
        for size in (3, 4, 5, 7):
            loss = run(net, torch.rand(size, 1), torch.rand(size, 1))
            loss.backward()
            results.append(loss)
        return results

    assert check(step, net).fallbacks == {}


@pytest.mark.parametrize("is_enabled", [False, True])
def test_modes_around(is_enabled: bool) -> None:
    def step(compile: Any, net: nn.Module, x: Tensor) -> Any:
        @compile
        def run(x: Tensor) -> tuple[Tensor, Tensor]:
            x = x.clone().requires_grad_()
            return net(x).sum(), x

        with torch.set_grad_enabled(is_enabled), torch.autocast("cpu", torch.bfloat16):
            loss, x = run(x)
        if is_enabled:
            loss.backward()
        return loss, x, x.grad

    check(step, net, constant(4, 2))


def test_inside_of_a_transform_it_raises_as_in_eager() -> None:
    def step(compile: Any, x: Tensor) -> Any:
        run = compile(lambda x: x.clone().requires_grad_().sin().sum())
        try:
            return torch.func.grad(run)(x)
        except RuntimeError as error:
            return type(error).__name__

    check(step, constant(3))


def test_a_parameter_of_the_caller_is_no_leaf_of_the_function() -> None:
    """A copy of what has a history has one, too: requires_grad_ changes nothing."""

    def step(compile: Any, w: Tensor) -> Any:
        run = compile(lambda w: w.clone().requires_grad_().sin().sum())
        loss = run(w)
        loss.backward()
        return loss

    assert check(step, leaf(3)).num_graphs == 1


@pytest.mark.parametrize(
    "made",
    [
        lambda: torch.ones(3, dtype=torch.int64, requires_grad=True),
        lambda: setattr(torch.ones(3, dtype=torch.int64), "requires_grad", True),
        lambda: torch.ones(3, dtype=torch.int64).requires_grad_(),
    ],
)
def test_a_tensor_of_integers_that_is_made_a_leaf_raises_as_in_eager(made: Callable[[], Any]) -> None:
    def step(compile: Any) -> Any:
        return compile(made)()

    check(step, compare_messages=True, allow_fallback=True)  # tracing fails as well


def test_what_has_a_history_is_not_made_a_leaf_by_assignment() -> None:
    """Eager raises, though it requires a gradient already."""

    def step(compile: Any, w: Tensor) -> Any:
        @compile
        def run(w: Tensor) -> Tensor:
            y = w * 2
            y.requires_grad = True
            return y.sin().sum()

        return run(w)

    check(step, leaf(3), compare_messages=True)


class Named(torch.Tensor):
    pass


def test_a_copy_of_a_subclass() -> None:
    def step(compile: Any, x: Tensor) -> Any:
        @compile
        def run(x: Tensor) -> tuple[Tensor, Tensor]:
            y = x.clone().requires_grad_()
            return (y * 2).sum(), y

        loss, y = run(x.as_subclass(Named))
        loss.backward()
        return loss.detach(), type(loss).__name__, type(y).__name__, y.is_leaf, y.grad

    assert check(step, constant(3)).num_graphs == 2  # as before
