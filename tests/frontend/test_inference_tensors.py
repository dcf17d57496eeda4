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
