"""What type checkers see of what is compiled: the type that it had. Nothing of it runs.

mypy checks it in `make check`, pyright in `make types`; a type that is lost is an error of theirs.
"""

# pyright: reportUnnecessaryTypeIgnoreComment=true
from __future__ import annotations

from collections.abc import Callable
from typing import assert_type

import torch
from torch import Tensor, nn

import gradc
from gradc.frontend.api import Decorator
from gradc.parity.report import Report
from gradc.reporting.explain import Explanation


class Net(nn.Module):
    width: int = 3

    def forward(self, x: Tensor) -> Tensor:
        return x


def of_modules(model: Net) -> None:
    compiled = gradc.compile(model)
    assert_type(compiled, Net)
    assert_type(compiled.width, int)
    assert_type(gradc.compile(model, backend="inductor", dynamic=False), Net)
    assert_type(gradc.compile(fullgraph=True)(model), Net)


def of_optimizers(model: Net) -> None:
    assert_type(gradc.compile(torch.optim.SGD(model.parameters())), torch.optim.SGD)


def plain(x: Tensor, scale: float = 1.0) -> tuple[Tensor, int]:
    return x * scale, 1


@gradc.compile
def decorated(x: Tensor, scale: float = 1.0) -> tuple[Tensor, int]:
    return plain(x, scale)


@gradc.compile(dynamic=False, options={"verify": 3})
def decorated_with_options(x: Tensor, scale: float = 1.0) -> tuple[Tensor, int]:
    return plain(x, scale)


def of_functions(x: Tensor) -> None:
    assert_type(gradc.compile(plain)(x, scale=2.0), tuple[Tensor, int])
    assert_type(decorated(x, scale=2.0), tuple[Tensor, int])
    assert_type(decorated_with_options(x), tuple[Tensor, int])
    decorated(x, scale="two")  # type: ignore[arg-type]
    takes_a_step: Callable[[Tensor, float], tuple[Tensor, int]] = gradc.compile(plain)
    takes_a_step(x, 1.0)


class Trainer:
    @gradc.compile
    def step(self, x: Tensor) -> Tensor:
        return x


def of_methods(trainer: Trainer, x: Tensor) -> None:
    assert_type(trainer.step(x), Tensor)


def of_the_rest(model: Net, x: Tensor) -> None:
    assert_type(gradc.compile(), Decorator)
    assert_type(gradc.check(model, x), Report)
    assert_type(gradc.explain(model)(x), Explanation)
    assert_type(gradc.config.verify, int)
