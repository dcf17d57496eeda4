"""Whole slices of what has symbols for sizes: as in eager, they are no calls, and have no nodes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import gradc
from gradc.backends import lookup_backend
from gradc.ir.program import Program
from tests.oracle import compare_runs, leaf

INDICES: dict[str, Any] = {
    "a column": lambda x: x[:, 0],
    "whole": lambda x: x[:],
    "from the beginning": lambda x: x[0:, 1],
    "behind dots": lambda x: x[..., :, 1],
    "before dots": lambda x: x[:, ..., 1:],
    "a new dimension": lambda x: x[None, :, :, 0],
    "all but the last": lambda x: x[:, :-1],
    "rows by numbers": lambda x: x[:, torch.tensor([0, 2])],
    "a mask's": lambda x: x[:, torch.tensor([True, False, True, True])],
    "every second": lambda x: x[::2, 0],
    "of three dimensions": lambda x: x.unsqueeze(1)[:, :, 1],
}


@pytest.mark.parametrize("index", INDICES)
def test_indices_of_any_batch(index: str) -> None:
    def step(compile: Any, x: Tensor) -> Tensor:
        y = compile(INDICES[index])(x.sin())
        y.square().sum().backward()
        return y

    def at(size: int) -> Any:
        return step, (leaf(size, 4),)

    report = compare_runs([at(3), at(5), at(6), at(3)])
    assert not report.differences, str(report)


def written(x: Tensor) -> Tensor:
    y = x.sin()
    y[:, 0] = 2
    y[:] *= y
    return y


def test_writing_into_a_column() -> None:
    def step(compile: Any, x: Tensor) -> Tensor:
        y = compile(written)(x)
        y.square().sum().backward()
        return y

    report = compare_runs([(step, (leaf(size, 4),)) for size in (3, 5, 6)])
    assert not report.differences, str(report)


def test_no_call_slices_all_there_is() -> None:
    """The slice's backward would copy the gradient into zeros."""
    calls: list[str] = []

    def noting(program: Program) -> Any:
        calls.extend(str(call.op) for call in program.instructions)
        return lookup_backend("eager")(program)

    gradc.register_backend("noting", noting)
    x = torch.randn(6, 4, requires_grad=True)
    gradc.compile(lambda x: x[:, 0].sin(), backend="noting", dynamic=True)(x).sum().backward()
    assert "aten.select_backward.default" in calls
    assert not any("slice" in call for call in calls)


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(1.5))
        self.layers = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x) * self.scale


@pytest.mark.parametrize("first", [None, 4], ids=["whole", "the first ones"])
def test_third_order_of_a_column_of_any_batch(first: int | None) -> None:
    """Program 1098 of the fuzzer's steps, seed 140: it raised, since at plain sizes there was no node for the slice.

    Of a batch of four the first ones are all.
    """

    def losses(compile: Any) -> list[float]:
        torch.manual_seed(0)
        model = Scaled()

        def step(x: Tensor) -> Tensor:
            x.requires_grad_()
            out = model(x)
            loss = -F.log_softmax(out, -1)[:first, 0].mean()
            (slope,) = torch.autograd.grad(out.sum(), x, create_graph=True)
            loss = loss + slope.square().mean()
            torch.autograd.grad(loss, list(model.parameters()))
            return loss

        run, found = compile(step), []
        for size, is_in_half in ((5, True), (5, False), (6, False), (7, False), (4, False), (5, False)):
            with torch.autocast("cpu", torch.bfloat16, enabled=is_in_half):
                found.append(run(torch.randn(size, 4)).item())
        return found

    assert losses(gradc.compile) == losses(lambda step: step)
