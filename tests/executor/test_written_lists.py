"""Ops that write into lists of tensors count it, as in eager: a backward of what was saved before then raises, not computes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import gradc
from tests.oracle import check, constant, leaf

A, B, C = "abc"  # lists of tensors
CALLS: dict[str, tuple[Any, ...]] = {
    "add": (B,),
    "addcdiv": (B, C),
    "addcmul": (B, C),
    "clamp_max": (B,),
    "clamp_min": (0.5,),
    "copy": (B,),
    "div": (2.0,),
    "exp": (),
    "lerp": (B, 0.5),
    "maximum": (B,),
    "minimum": ([0.25, 0.75],),
    "mul": (0.5,),
    "neg": (),
    "pow": (2.0,),
    "reciprocal": (),
    "round": (),
    "sqrt": (),
    "sub": (B,),
    "zero": (),
}


@pytest.mark.parametrize("name", CALLS)
def test_each_tensor_counts_it(name: str) -> None:
    def step(compile: Any, *tensors: Tensor) -> Any:
        lists = {A: list(tensors[:2]), B: list(tensors[2:4]), C: list(tensors[4:])}

        @compile
        def write(lists: dict[str, list[Tensor]]) -> Tensor:
            operands = [lists[each] if isinstance(each, str) else each for each in CALLS[name]]
            getattr(torch, f"_foreach_{name}_")(lists[A], *operands)
            return lists[A][0].sum()

        return [write(lists) for _ in range(3)]

    check(step, *[constant(3) for _ in range(6)])


def test_parts_that_are_copied_out() -> None:
    def step(compile: Any, x: Tensor, *parts: Tensor) -> Any:
        return compile(lambda x, parts: torch.split_with_sizes_copy(x, [1, 2], out=parts))(x, list(parts))

    check(step, constant(3), constant(1), constant(2))


def test_what_was_saved_before_is_not_read_after() -> None:
    def step(compile: Any, x: Tensor, other: Tensor) -> None:
        loss = x.sin().sum()

        @compile
        def update(tensors: list[Tensor]) -> None:
            with torch.no_grad():
                torch._foreach_mul_(tensors, 0.5)

        update([x, other])
        loss.backward()

    assert check(step, leaf(3), leaf(3), compare_messages=True).eager.error is not None


def test_gradients_that_are_clipped() -> None:
    def step(compile: Any, x: Tensor, y: Tensor) -> Any:
        (x.square().sum() + y.sin().sum()).backward()
        return compile(lambda tensors: torch.nn.utils.clip_grad_norm_(tensors, 0.1))([x, y])

    check(step, leaf(3), leaf(4))
    assert not gradc.counters["fallbacks"]
