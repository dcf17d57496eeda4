"""A call that makes no op of torch's: the function stays compiled for those that do."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tests.oracle import check, leaf


def test_a_call_that_returns_at_once_leaves_the_function_compiled() -> None:
    """Dynamo skipped the function from then on, and nobody was told."""

    def step(compile: Any, x: Tensor) -> Any:
        def f(x: Tensor) -> Tensor:
            return (x / 3).sin() if x.requires_grad else x

        call = compile(f)
        results = [call(x), call(x.detach())]
        with torch.autocast("cpu", torch.bfloat16):
            return *results, call(x), call(x.detach())

    assert check(step, leaf(3)).num_graphs == 4
