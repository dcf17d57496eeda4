"""Tensors made in inference mode as inputs of what is compiled."""

from __future__ import annotations

from typing import Any

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
