"""Where sizes are symbolic, the usual backward is compiled with the forward, whatever autocast is ambient there."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tests.oracle import check, leaf


def test_forward_under_another_autocast() -> None:
    def rolled(a: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return a.bfloat16().roll(1, 0).float()

    def step(compile: Any, a: Tensor) -> None:
        with torch.autocast("cpu", torch.float16):
            out = compile(rolled, dynamic=True)(a)
        out.sin().sum().backward()  # the kernel of roll calls cat, which knows no bfloat16 under float16

    check(step, leaf(3, 2))
