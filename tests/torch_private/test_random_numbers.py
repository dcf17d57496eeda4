"""Numbers that Python's generator draws are numbers: a tensor in their place would promote others without dimensions."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.oracle import check

USES: dict[str, Callable[[Tensor, Any], Any]] = {
    "add": lambda x, n: x + n,
    "reflected": lambda x, n: n - x,
    "mul": lambda x, n: x * n,
    "div": lambda x, n: x / (n + 1),
    "pow": lambda x, n: x.abs() ** n,
    "base": lambda x, n: (n + 1) ** x,
    "torch.add": lambda x, n: torch.add(x, n),
    "where": lambda x, n: torch.where(x > n, x, n),
    "compare": lambda x, n: (x < n, x == n),
    "clamp": lambda x, n: x.clamp(max=n),
    "in place": lambda x, n: x.clone().mul_(n),
    "full": lambda x, n: torch.full((2,), n) * x,
    "tensor": lambda x, n: torch.tensor(n) * x,
    "arithmetic": lambda x, n: x * (2 * n + 1),
    "branch": lambda x, n: x * 2 if n < 0.5 else x + 1,
    "returned": lambda x, n: (x * 2, n, type(n)),
}
DRAWS = {
    "random": lambda: random.random(),
    "uniform": lambda: random.uniform(0, 1),
    "randint": lambda: random.randint(0, 3),
    "randrange": lambda: random.randrange(1, 5),
    "choice": lambda: random.choice((0.5, 1.5)),
}


@pytest.mark.parametrize("draw", DRAWS)
@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.int32])
def test_a_drawn_number_promotes_no_tensor_without_dimensions(use: str, draw: str, dtype: torch.dtype) -> None:
    """``x + random.random()`` was of float64, and ``x + random.randint(0, 3)`` of int64, where x was of float32 or int32."""

    using, drawn = USES[use], DRAWS[draw]

    def function(x: Tensor) -> Any:
        return using(x * 1, drawn())

    def step(compile: Any, x: Tensor) -> Any:
        random.seed(0)
        run = compile(function)
        return run(x), run(x), random.random()

    check(step, lambda: torch.tensor(2, dtype=dtype), allow_fallback=True)


def test_a_drawn_float_is_an_input_of_the_one_graph() -> None:
    def step(compile: Any, x: Tensor) -> Any:
        random.seed(0)
        run = compile(lambda x: (x.sin() + random.uniform(0, 1)) * random.uniform(1, 2))
        return [run(x) for _ in range(3)]

    assert check(step, lambda: torch.tensor(2.0, requires_grad=True)).num_graphs == 1
