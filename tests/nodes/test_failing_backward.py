"""A backward that raises: nodes that it did not come to keep what they saved, and another pass goes through them.

Under autocast to float16, the backward of ``roll`` refuses bfloat16; under autocast to bfloat16, that of ``unbind`` float16.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.oracle import check, constant, leaf


def own_value(a: Tensor, net: nn.Linear) -> Tensor:
    return a.exp()


def primal(a: Tensor, net: nn.Linear) -> Tensor:
    return a.sin()


def transpose(a: Tensor, net: nn.Linear) -> Tensor:
    return net(a).tanh()


FUNCTIONS = (own_value, primal, transpose)


def layer() -> nn.Linear:
    return nn.Linear(4, 4).to(torch.bfloat16)


def attempt(action: Callable[[], Any]) -> str:
    try:
        action()
    except RuntimeError as error:
        return str(error)
    return ""


def refused(value: Tensor) -> str:
    with torch.autocast("cpu", torch.float16):
        return attempt(value.sum().backward)


@pytest.mark.parametrize("order", (1, 2))
@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: function.__name__)
def test_another_pass(function: Callable[[Tensor, nn.Linear], Tensor], order: int) -> None:
    def step(compile: Any, a: Tensor, net: nn.Linear) -> Any:
        def values(a: Tensor) -> tuple[Tensor, Tensor]:
            rolled = function(a, net).roll(1, 0)
            return F.normalize(rolled.float(), dim=0), rolled

        run, seen = compile(values), list[Any]()
        for _ in range(3):
            one, other = run(a)
            error = refused(one)
            assert error
            (grad,) = torch.autograd.grad(other.square().sum(), a, create_graph=order > 1)
            seen += [error, grad]
            if order > 1:
                seen += torch.autograd.grad(grad.square().sum(), a)
        return seen

    check(step, leaf(4, 4, dtype=torch.bfloat16), layer)


@pytest.mark.parametrize("written", ("input", "weight"))
def test_what_is_written_into_behind_it_is_found_changed(written: str) -> None:
    def step(compile: Any, a: Tensor, net: nn.Linear) -> Any:
        net.requires_grad_(False)
        a.requires_grad_()
        run = compile(lambda a: net(a.sin()).roll(1, 0))
        out = run(a)
        assert refused(out)
        with torch.no_grad():
            (a if written == "input" else net.weight).add_(1)
        error = attempt(out.sum().backward)
        assert "modified by an inplace operation" in error
        return error.partition("Hint")[0]

    check(step, constant(4, 4, dtype=torch.bfloat16), layer)


def test_what_had_run_is_freed_where_the_pass_cannot_be_traced() -> None:
    """It runs eagerly then, as the tape's nodes; those that ran before the one that raises let go of what they saved."""

    def step(compile: Any, a: Tensor) -> Any:
        out = compile(lambda a: F.silu(a).square() @ a.unbind(1)[0].t())(a)
        with torch.autocast("cpu", torch.bfloat16):
            error = attempt(out.sum().backward)
        assert error
        return [bool(attempt(out.sum().backward)), a.grad]

    check(step, leaf(2, 1, 4, dtype=torch.float16), allow_fallback=True)
