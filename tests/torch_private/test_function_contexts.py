"""What the ``forward`` of an autograd.Function tells its ``ctx`` holds, where Dynamo compiles that ``forward``."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.autograd.forward_ad as fwAD

import gradc
from tests.compilers import find
from tests.oracle import check, leaf


class Both(torch.autograd.Function):
    """Two results, the second marked as not differentiable."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> Any:
        doubled, tripled = x * 2, x * 3
        ctx.mark_non_differentiable(tripled)
        return doubled, tripled

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
        return grad * 2

    @staticmethod
    def jvp(ctx: Any, tangent: torch.Tensor) -> Any:
        return tangent * 2, None


class Scaled(torch.autograd.Function):
    """Written into its argument, and kept from zeros for gradients that are missing."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
        x.mul_(y)
        ctx.mark_dirty(x)
        ctx.save_for_backward(y)
        ctx.set_materialize_grads(False)
        return x, y.exp()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor, other: torch.Tensor | None) -> Any:
        (y,) = ctx.saved_tensors
        assert other is None
        return grad * y, None


def test_what_is_marked_gets_no_gradient() -> None:
    """Dynamo forgot the mark: the second result required a gradient."""

    def step(compile: Any, x: torch.Tensor) -> Any:
        doubled, tripled = compile(lambda x: Both.apply(x * 2))(x)
        (doubled * tripled).sum().backward()
        return doubled, tripled, tripled.requires_grad, tripled.grad_fn is None

    check(step, leaf(3))


@pytest.mark.parametrize("compiler", [find("gradc"), find("gradc_captured")], ids=lambda compiler: compiler.name)
def test_a_dirty_argument_is_the_result(compiler: Any) -> None:
    def step(compile: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
        def function(x: torch.Tensor, y: torch.Tensor) -> Any:
            doubled = x * 2
            result, _ = Scaled.apply(doubled, y)
            return result, doubled

        result, doubled = compile(function)(x, y)
        result.sin().sum().backward()
        return result, doubled, result is doubled, result._version

    check(step, leaf(3), leaf(3), compiler=compiler)


def test_the_forward_that_marks_is_compiled() -> None:
    gradc.counters.clear()
    gradc.compile(lambda x: Scaled.apply(x.exp(), x))(torch.ones(3, requires_grad=True))
    assert dict(gradc.counters["uncompiled"]) == {"gradc: autograd.Function": 1}, "no break at mark_dirty"


def test_forward_mode_through_what_is_not_differentiable() -> None:
    """An internal assertion of torch's: no tangent for what should have one."""

    def step(compile: Any, x: torch.Tensor) -> Any:
        with fwAD.dual_level():
            doubled, tripled = compile(lambda x: Both.apply(x))(fwAD.make_dual(x, torch.ones_like(x)))
            return fwAD.unpack_dual(doubled).tangent, fwAD.unpack_dual(tripled).tangent, tripled

    check(step, leaf(3), allow_fallback=True)
