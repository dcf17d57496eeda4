"""Where a dimension has size 1, its stride tells how gradients were added up: over the first of them, or into a new tensor."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from tests.oracle import check, leaf


def of_two_nodes(compile: Any, a: Tensor) -> Any:
    def f(a: Tensor) -> Tensor:
        t = a.mT
        return t.std() + t.var()

    return torch.autograd.grad(compile(f)(a), a)


def test_of_other_sizes() -> None:
    check(of_two_nodes, leaf(2, 3))


@pytest.mark.xfail(strict=True, reason="traced, the sum is a new tensor: docs/notes/segments.md, What it does not do")
@pytest.mark.parametrize("shape", [(1, 3), (3, 1)])
def test_of_size_one(shape: tuple[int, int]) -> None:
    check(of_two_nodes, leaf(*shape))
