"""What changes from one backward to the next, and must be captured again or taken as it is."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from gradc import compiled_autograd
from tests.capture.steps import Step, check, grads, leaf

pytestmark = pytest.mark.usefixtures("nothing_captured")


def test_scalar_that_changes_is_seen() -> None:
    def make() -> Step:
        w = leaf(3)

        def step(i: int) -> Any:
            w.grad = None
            (w.sin() * (i % 2 + 1.5)).sum().backward()
            (w.sin() ** (i % 2 + 2)).sum().backward()
            return grads(w)

        return step

    check(make, captures=None)


def test_op_that_changes_is_seen() -> None:
    def make() -> Step:
        w = leaf(3)

        def step(i: int) -> Any:
            w.grad = None
            [torch.sin, torch.cos, torch.exp][i % 3](w).sum().backward()
            return grads(w)

        return step

    check(make, steps=6, captures=3)


def test_shape_that_changes_is_seen() -> None:
    def make() -> Step:
        w = leaf(3, 3)

        def step(i: int) -> Any:
            w.grad = None
            (torch.ones(2 + i % 2, 3) @ w).exp().mean().backward()
            return grads(w)

        return step

    check(make, steps=6, captures=2)


def test_order_of_creation_is_seen() -> None:
    def make() -> Step:
        def step(i: int) -> Any:
            x = leaf(4, seed=i) * 1e3
            order = [1, 2, 0] if i % 2 else [0, 1, 2]
            parts: list[Any] = [None] * 3
            y = x * 1.1
            for k in order:
                parts[k] = [torch.sin, torch.cos, torch.tanh][k](y)
            y.retain_grad()
            leafed = parts[0] * 1e-3 + parts[1] * 7 + parts[2] * 1e4
            return list(torch.autograd.grad(leafed.sum(), [x]))

        return step

    check(make, steps=6, captures=None)


def test_autocast_around_backward_is_seen() -> None:
    def make() -> Step:
        linear = nn.Linear(4, 4)

        def step(i: int) -> Any:
            linear.zero_grad()
            loss = linear(torch.ones(2, 4)).sum()
            with torch.autocast("cpu", enabled=i % 2 == 0):
                loss.backward()
            with torch.autocast("cpu"):
                loss = linear(linear(torch.ones(2, 4))).float().sum()
            loss.backward()
            return grads(*linear.parameters())

        return step

    check(make, steps=6, captures=None)


def test_data_slices_do_not_recapture() -> None:
    data = torch.randn(20, 3)

    def make() -> Step:
        w = leaf(3, 3)

        def step(i: int) -> Any:
            w.grad = None
            (data[4 * i : 4 * i + 4] @ w).exp().sum().backward()
            return grads(w)

        return step

    check(make, steps=5)


def test_aliases_that_part_are_seen() -> None:
    def make() -> Step:
        def step(i: int) -> Any:
            x, a = leaf(3, seed=i), torch.ones(3)
            b = a.detach() if i % 2 == 0 else torch.full((3,), 2.0)
            ((x * a) * b).exp().sum().backward()
            return grads(x)

        return step

    check(make, captures=2)


@pytest.mark.parametrize("is_captured", [False, True])
def test_kernels_that_call_others_see_the_autocast_around_backward(is_captured: bool) -> None:
    """The kernel of roll calls cat, and autocast to bfloat16 refuses float16 there. Found by the fuzzer."""
    y = leaf(3, 4, dtype=torch.float16).roll((1, 1), (0, 1)).sum()
    chosen = compiled_autograd.enable if is_captured else compiled_autograd.disable
    with torch.autocast("cpu", torch.bfloat16), chosen(), pytest.raises(RuntimeError, match="autocast::prioritize"):
        y.backward()
