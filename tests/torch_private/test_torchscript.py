"""What TorchScript compiled runs as in eager, by its own executor; the code around it is compiled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from tests.oracle import check, leaf


def gelu() -> Callable[[torch.Tensor], torch.Tensor]:
    """Another one each time: the executor remembers what it profiled of each."""

    def gelu(x: torch.Tensor) -> torch.Tensor:
        return x * 0.5 * (1 + torch.tanh(0.79788456 * x * (1 + 0.044715 * x * x)))

    return gelu


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.linear(x)) * 2


class Model(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.first, self.inner, self.last = nn.Linear(4, 4), inner, nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.first(x).relu()
        hidden = self.inner(hidden)
        return self.last(hidden).sin()


def steps(compile: Any, module: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> list[torch.Tensor]:
    run, results = compile(module), []
    for _ in range(3):  # the executor profiles the first two
        results.append(run(x))
        results[-1].sum().backward()
    return results


def scripted() -> Any:
    return torch.jit.script(Layer())


def traced() -> Any:
    return torch.jit.trace(Layer(), torch.ones(2, 4))


def frozen() -> Any:
    return torch.jit.freeze(scripted().eval())


@pytest.mark.parametrize("make", [scripted, traced, frozen])
def test_a_module_inside(make: Callable[[], nn.Module]) -> None:
    assert check(steps, lambda: Model(make()), leaf(2, 4)).num_graphs == 2


def scripted_function() -> Any:
    return torch.jit.script(gelu())


def traced_function() -> Any:
    return torch.jit.trace(gelu(), torch.ones(2, 4))


def between_two_graphs(function: Any) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda x: function(x.sin()).cos()


@pytest.mark.parametrize("make", [scripted_function, traced_function])
def test_a_function_inside(make: Callable[[], Any]) -> None:
    assert check(steps, lambda: between_two_graphs(make()), leaf(2, 4)).num_graphs == 2


def test_a_function_inside_has_the_derivatives_of_its_executor() -> None:
    def step(compile: Any, function: Any, x: torch.Tensor) -> list[str]:
        run = compile(lambda x: function(x.sin()))
        return [type(run(x).grad_fn).__name__ for _ in range(4)]

    names = check(step, scripted_function, leaf(2, 4)).compiled.values.values()
    assert "CppFunction" in names  # the executor's own node, once it has profiled


def test_a_method_and_a_weight_of_a_module() -> None:
    method_and_weight = lambda module: lambda x: module.forward(x.sin()) @ module.linear.weight
    check(steps, lambda: method_and_weight(scripted()), leaf(2, 4))


def test_a_chain_with_a_module_in_it() -> None:
    check(steps, lambda: nn.Sequential(nn.Linear(4, 4), scripted(), nn.Tanh()), leaf(2, 4))


@pytest.mark.parametrize("make", [scripted, traced, scripted_function])
def test_compiled_itself_it_stays_what_it_is(make: Callable[[], Any]) -> None:
    report = check(steps, make, leaf(2, 4), allow_fallback=True)
    assert report.num_graphs == 0
    assert report.fallbacks == {"TorchScript": 1}
