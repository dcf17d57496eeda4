"""Version counters of gradients: eager's, where formulas write into what they return, and the engine adds to it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.oracle import check, leaf

Program = Callable[[torch.Tensor], Any]


def _from_a_part(x: torch.Tensor) -> torch.Tensor:
    x.narrow(1, 1, 1).copy_(x.narrow(1, 2, 1))
    return x


def _from_itself(x: torch.Tensor) -> torch.Tensor:
    part = x.narrow(1, 1, 1)
    part.copy_(part)
    return x


def _a_part_added(x: torch.Tensor) -> torch.Tensor:
    x.narrow(1, 1, 1).add_(x.narrow(1, 2, 1))
    return x


def _a_row_set(x: torch.Tensor) -> torch.Tensor:
    x[1] = x[2]
    return x


@pytest.mark.parametrize("write", [_from_a_part, _from_itself, _a_part_added, _a_row_set])
def test_a_part_that_is_written_from_its_own_tensor(write: Program) -> None:
    """The gradient of the whole is written into twice, and the part's is added to it in place: 3; it was 0."""

    def step(compile: Any, x: torch.Tensor) -> torch.Tensor:
        out = compile(lambda x: write(x.frac()))(x)
        out.sum().backward()
        return out

    check(step, leaf(4, 4))


def _thrice(x: torch.Tensor) -> torch.Tensor:
    return torch.addcmul(x, x, x, value=0.5).tanh()


@pytest.mark.parametrize("shape", [(), (4, 4)])
def test_one_formula_that_has_a_leaf_thrice(shape: tuple[int, ...]) -> None:
    """The engine adds when the formula is through, and then nobody reads the first gradient any more."""

    def step(compile: Any, x: torch.Tensor) -> torch.Tensor:
        out = compile(_thrice)(x)
        out.sum().backward()
        return out

    check(step, leaf(*shape))


def test_a_view_that_the_engine_adds_to_where_saved_tensors_are_packed() -> None:
    """The gradient of a weight is a transpose: a view, to which the engine adds nothing in place."""

    def step(compile: Any, x: torch.Tensor) -> torch.Tensor:
        run = compile(lambda x: torch.nn.functional.linear(x.sign() * x, x))
        with torch.autograd.graph.saved_tensors_hooks(torch.Tensor.double, torch.Tensor.float):
            out = run(x)
        out.sum().backward()
        return out

    check(step, leaf(1, 3))
