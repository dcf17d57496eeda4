"""What code reads of a tensor is the tensor's own, each time."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tests.oracle import check, constant, leaf


def test_is_leaf_is_asked_of_each_argument() -> None:
    """It was the first argument's for all that came after."""

    def step(compile: Any, x: Tensor) -> Any:
        call = compile(lambda x: x.sin() if x.is_leaf else x.cos())
        return call(x * 1), call(x), call(x.detach())

    assert check(step, leaf(3)).num_graphs > 1


def test_base_is_asked_of_each_tensor() -> None:
    """Of an argument that is a view it was None."""

    def step(compile: Any, x: Tensor) -> Any:
        call = compile(lambda x: (x._base is None, x.view(2, 2)._base is x, (x.sin() * 2)._base is None, x.sin()))
        view = torch.ones(2, 2).view(4)
        return [call(each)[0] for each in (x, (x * 2).view(4), view)], call(x)[1:]

    assert check(step, leaf(4)).num_graphs > 0


def test_requires_grad_of_a_leaf_that_is_unmade() -> None:
    """Dynamo's graph made it a leaf twice."""

    def step(compile: Any, x: Tensor) -> Any:
        @compile
        def run(x: Tensor) -> tuple[Tensor, Tensor]:
            y = x.clone().requires_grad_()
            y.requires_grad_(False)
            return y * 2, y

        return run(x)

    check(step, constant(3))
