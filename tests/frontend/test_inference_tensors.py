"""Tensors made in inference mode as inputs of what is compiled."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.oracle import check


def made() -> torch.Tensor:
    with torch.inference_mode():
        return torch.ones(3)


def test_a_write_outside_of_inference_mode_is_refused() -> None:
    """The region wrote, since it runs below autograd, which is what forbids it."""

    def step(compile: Any, x: torch.Tensor) -> None:
        compile(lambda x: x[:2].add_(1))(x)

    check(step, made, compare_messages=True, allow_fallback=True)


def test_reads_and_writes_inside_are_compiled() -> None:
    def step(compile: Any, x: torch.Tensor) -> Any:
        out = compile(lambda x: x * 2)(x)
        with torch.inference_mode():
            return out, compile(lambda x: x.add_(1) * 2)(x)

    check(step, made)


def test_what_is_made_of_them_outside_of_inference_mode_has_eagers_version() -> None:
    """Given inference tensors alone the kernel of mean, and that of sum, counts its writes into its own result."""

    def step(compile: Any, cached: torch.Tensor) -> Any:
        def made_inside(cached: torch.Tensor) -> tuple[torch.Tensor, ...]:
            with torch.inference_mode():
                doubled = cached * 2
            return doubled.mean(), doubled.exp(), (doubled.sum(0, keepdim=True) * 2).view(-1), doubled.clone(), doubled.abs()

        outs = compile(lambda cached: (cached.mean(), cached.exp(), cached.sum(0, keepdim=True).view(-1)))(cached)
        outs += compile(made_inside)(cached)
        return outs, [out._version for out in outs]

    check(step, made, allow_fallback=True)


def trained(function: Any) -> Any:
    """A step that calls the function with a leaf and what was made in inference mode, and goes back."""

    def step(compile: Any, w: torch.Tensor) -> Any:
        x = torch.arange(3.0, requires_grad=True)
        out = compile(function)(x, w)
        out.sum().backward()
        return out, x.grad

    return step


def a_product(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    y = x.sin()
    y * w
    return y.exp()


def a_product_with_a_view(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    x[:2] / w[1:].view(2)
    return x.exp()


def a_product_that_is_used(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.linear(x, w.expand(3, 3)).exp()


@pytest.mark.parametrize("function", [a_product, a_product_with_a_view, a_product_that_is_used])
def test_a_call_that_would_save_one_is_refused_though_nobody_uses_its_result(function: Any) -> None:
    """What was traced in its place could be saved, and a region saves only what its backward reads."""
    assert check(trained(function), made, compare_messages=True, allow_fallback=True).eager.error is not None


def test_the_error_is_raised_where_the_code_expects_it() -> None:
    def catching(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        try:
            y = x * w
        except RuntimeError:
            y = x + w
        return y.exp()

    check(trained(catching), made, allow_fallback=True)


def test_a_call_that_saves_none_is_compiled() -> None:
    def f(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            factor = x * w
        return (torch.stack([x, w]).sum(0) + w - w[0]).exp() * (w + 1) * factor

    assert check(trained(f), made).num_graphs == 1


def enabled_inside(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    with torch.set_grad_enabled(True):
        y = x.abs().exp()
    return y, y[:2], x.sin()


@pytest.mark.parametrize("is_enabled", [False, True])
def test_gradients_enabled_in_inference_mode_are_not_recorded(is_enabled: bool) -> None:
    """The region saved for backward what it made, which torch forbids for what is made in inference mode."""

    def step(compile: Any, x: torch.Tensor) -> Any:
        run = compile(enabled_inside)
        outside = run(x)
        with torch.inference_mode(), torch.set_grad_enabled(is_enabled):
            inside = run(x)
        return outside, inside, [(out.requires_grad, out.is_inference()) for out in (*outside, *inside)]

    report = check(step, lambda: torch.arange(4.0, requires_grad=True), allow_fallback=True)
    assert report.fallbacks == {"gradients enabled in inference mode": 1}


@pytest.mark.parametrize("name", ["requires_grad", "is_leaf", "grad_fn"])
def test_nothing_is_recorded_in_inference_mode_for_who_asks(name: str) -> None:
    """Dynamo leaves inference mode to trace: with gradients enabled inside, it answered as if the call were recorded."""

    def step(compile: Any, x: torch.Tensor) -> Any:
        def f(x: torch.Tensor) -> Any:
            with torch.enable_grad():
                y = x * 2
            return y + 1 if getattr(y, name) else y - 1

        with torch.inference_mode():
            inside = compile(f)(x)
        return inside, compile(f)(x)

    check(step, lambda: torch.ones(3, requires_grad=True), allow_fallback=True)
