"""Ops that return their argument: whether it is the same object, by ``is`` and by ``id``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import gradc
from gradc.torch_private.version import TORCH
from tests.oracle import check

RETURN_THEIR_ARGUMENT: dict[str, Callable[[Tensor], Tensor]] = {
    "contiguous": lambda y: y.contiguous(),
    "to": lambda y: y.to(torch.float32),
    "dropout in evaluation": lambda y: F.dropout(y, 0.5, False),
    "dropout of nothing": lambda y: torch.dropout(y, 0.0, True),
    "dropout module": torch.nn.Dropout().eval(),
}
RETURN_ANOTHER: dict[str, Callable[[Tensor], Tensor]] = {
    "clone": lambda y: y.clone(),
    "view": lambda y: y.view(3),
    "dropout": lambda y: F.dropout(y, 0.5),
}
OPS = [pytest.param(op, id=name) for name, op in {**RETURN_THEIR_ARGUMENT, **RETURN_ANOTHER}.items()]


def made() -> Tensor:
    return torch.arange(3.0, requires_grad=True)


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("is_given", [True, False])
def test_one_object_or_two(op: Callable[[Tensor], Tensor], is_given: bool) -> None:
    def step(compile: Any, x: Tensor) -> Any:
        def f(x: Tensor) -> Any:
            y = x if is_given else x * 2
            z = op(y)
            known = {id(y): 3.0}
            return y * known.get(id(z), 5.0), z * (2 if z is y else 4), id(z) == id(y)

        y, z, is_one = compile(f)(x)
        (y.sum() + z.sum()).backward()
        return y, z, is_one

    check(step, made, allow_fallback=True)


def test_other_compilers_keep_torchs_dropout() -> None:
    """Its decomposition returns a copy before torch 2.14."""
    gradc.compile(lambda x: x * 2)(torch.ones(2))  # so that the patches are applied

    def is_the_same(x: Tensor) -> bool:
        y = x * 2
        return F.dropout(y, 0.5, False) is y

    assert torch.compile(is_the_same, backend="eager")(torch.ones(2)) is (TORCH >= (2, 14))
