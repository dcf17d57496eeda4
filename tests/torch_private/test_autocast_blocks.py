"""A graph that ends inside ``with torch.autocast(...)``: weights are cast once for the whole block, as in eager."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import gradc
from tests.oracle import check, constant, leaf

LOW = torch.bfloat16


def broken(x: Tensor, w: Tensor, **options: Any) -> Tensor:
    with torch.autocast("cpu", LOW, **options):
        first = x @ w
        torch._dynamo.graph_break()
        return (first @ w).float()


def test_one_cast_for_both_sides_of_a_break() -> None:
    """Dynamo left the block at the break: two casts, whose gradients were added in float32."""

    def step(compile: Any, x: Tensor, w: Tensor) -> None:
        compile(broken)(x, w).sum().backward()

    check(step, constant(8, 8), leaf(8, 8))


def test_a_break_in_a_function_that_is_called_inside() -> None:
    def inner(x: Tensor, w: Tensor) -> Tensor:
        torch._dynamo.graph_break()
        return x @ w

    def function(x: Tensor, w: Tensor) -> Tensor:
        with torch.autocast("cpu", LOW):
            return inner(inner(x, w), w).float()

    def step(compile: Any, x: Tensor, w: Tensor) -> None:
        compile(function)(x, w).sum().backward()

    check(step, constant(8, 8), leaf(8, 8))


@pytest.mark.parametrize("options", [{"enabled": False}, {"cache_enabled": False}], ids=lambda options: next(iter(options)))
def test_blocks_that_keep_no_casts_are_compiled(options: Any) -> None:
    gradc.counters.clear()
    gradc.compile(lambda x, w: broken(x, w, **options))(torch.ones(2, 2), torch.ones(2, 2, requires_grad=True)).sum().backward()
    assert list(gradc.counters["uncompiled"]) == ["Call to `torch._dynamo.graph_break()`"]


def test_it_is_counted_with_advice(capsys: pytest.CaptureFixture[str]) -> None:
    gradc.counters.clear()
    x, w = torch.ones(2, 2), torch.ones(2, 2, requires_grad=True)
    gradc.compile(broken)(x, w)
    assert dict(gradc.counters["uncompiled"]) == {"gradc: graph break under autocast": 1}
    with pytest.raises(gradc.FallbackError, match="graph_break"):
        gradc.compile(broken, fullgraph=True)(x, w)


def test_under_an_open_autocast_both_sides_are_compiled() -> None:
    def step(compile: Any, x: Tensor, w: Tensor) -> None:
        with torch.autocast("cpu", LOW):
            out = compile(broken)(x, w)
        out.sum().backward()

    assert check(step, constant(8, 8), leaf(8, 8)).num_graphs == 2
