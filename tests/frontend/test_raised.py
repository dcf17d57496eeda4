"""A graph that raises: what Python did before is done, and the error names the user's line, as in eager."""

from __future__ import annotations

import traceback
from typing import Any

import pytest
import torch
from torch import nn

import gradc
from gradc import native
from tests.oracle import Compiler, check


class Counting(nn.Module):
    """Counts its calls, and keeps what it was last called with."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(3, 2)
        self.log: list[float] = []

    def forward(self, number: torch.Tensor, *scales: float, shift: float = 0.0) -> torch.Tensor:
        self.log.append(shift)
        self.last = scales
        return (self.embedding(number) * scales[0] + shift).sum()


def _outcomes(call: Any, *all_args: tuple[Any, ...]) -> list[str]:
    outcomes = []
    for args in all_args:
        try:
            call(*args)
            outcomes.append("returned")
        except (IndexError, RuntimeError) as error:
            outcomes.append(f"{type(error).__name__}: {error}")
    return outcomes


def test_python_before_an_index_out_of_range() -> None:
    def step(compile: Compiler) -> Any:
        model = Counting()
        outcomes = _outcomes(compile(model), *((torch.tensor([number]), 2.0) for number in (1, 1, 7, 2)))
        return outcomes, model.log, model.last

    check(step)


def test_python_before_a_wrong_dtype() -> None:
    """Fake tensors do not look at the dtypes of addmm: the graph is made, and raises at its first call."""

    def step(compile: Compiler) -> Any:
        layer, seen = nn.Linear(2, 2).double(), []

        @compile
        def double(x: torch.Tensor) -> torch.Tensor:
            seen.append(x.dtype)
            return layer(x)

        return _outcomes(double, (torch.ones(1, 2),), (torch.ones(1, 2),)), seen

    check(step)


def test_hook_of_a_module_before_an_error() -> None:
    def step(compile: Compiler) -> Any:
        model, seen = nn.Sequential(nn.Linear(2, 2), nn.Linear(3, 2)), []
        model[0].register_forward_hook(lambda module, args, out: seen.append(type(module).__name__))
        return _outcomes(compile(model), (torch.ones(1, 2),)), seen

    check(step, allow_fallback=True)


def test_variables_of_closures() -> None:
    """Read, they are as they are; one that is set is out of reach, and the graph's own error is told."""

    def step(compile: Compiler) -> Any:
        table, seen, calls = torch.arange(3.0), {}, 0

        @compile
        def reads(index: torch.Tensor) -> torch.Tensor:
            seen["reads"] = True
            return table[index] * 2

        @compile
        def sets(index: torch.Tensor) -> torch.Tensor:
            nonlocal calls
            calls = 1
            return table[index] * 2

        index = torch.tensor([5])
        return _outcomes(reads, (index,)), _outcomes(sets, (index,)), seen

    check(step, allow_fallback=True)


@pytest.mark.parametrize("rest", ["dropout", "buffer"])
def test_what_has_happened_does_not_happen_again(rest: str) -> None:
    """A graph that drew, or wrote into a buffer, before it raised: once, as in eager."""

    def step(compile: Compiler) -> Any:
        table, buffer = torch.arange(3.0), torch.zeros(2)

        @compile
        def late(x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
            if rest == "dropout":
                x = nn.functional.dropout(x)
            else:
                buffer.add_(x)
            return x * table[index]

        outcomes = _outcomes(late, (torch.ones(2), torch.tensor([1])), (torch.ones(2), torch.tensor([5])))
        return outcomes, buffer, torch.rand(2)

    check(step)


def _noted(function: Any, *inputs: torch.Tensor) -> Any:
    def step(compile: Compiler) -> Any:
        noted: list[float] = []
        call = compile(lambda x: (noted.append(1.0), function(x))[1])
        return _outcomes(call, *((x,) for x in inputs)), noted

    return step


def test_python_before_a_check_of_a_result() -> None:
    """What only raises leaves nothing behind: the jitter that a Gaussian process counted was lost."""
    check(_noted(lambda x: torch.linalg.cholesky(x) * 2, torch.eye(2), -torch.eye(2), torch.eye(2)))
    check(_noted(lambda x: torch._assert_async(x[0, 0]), torch.eye(2), torch.zeros(2, 2)))


def test_python_before_a_value_that_a_distribution_refuses() -> None:
    def step(compile: Compiler) -> Any:
        noted: list[float] = []

        @compile
        def log_prob(scale: torch.Tensor) -> torch.Tensor:
            noted.append(1.0)
            return torch.distributions.Normal(torch.zeros(2), scale).log_prob(torch.ones(2))

        outcomes = []
        for scale in (torch.ones(2), -torch.ones(2), torch.ones(2)):
            try:
                outcomes.append(log_prob(scale))
            except ValueError as error:
                outcomes.append(str(error))
        return outcomes, noted

    check(step)


def test_python_before_an_error_that_tracing_meets() -> None:
    def write(x: torch.Tensor) -> torch.Tensor:
        with torch.inference_mode():
            y = x.sin() * 2
        return y.add_(1)

    check(_noted(write, torch.ones(2), torch.ones(2)), allow_fallback=True)


def test_what_a_hook_has_seen_it_does_not_see_again() -> None:
    def step(compile: Compiler) -> Any:
        table, packed = torch.arange(3.0), []

        @compile
        def late(x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
            return x.sin() * table[index]

        def pack(tensor: torch.Tensor) -> torch.Tensor:
            packed.append(tuple(tensor.shape))
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            outcomes = _outcomes(late, (torch.ones(1, requires_grad=True), torch.tensor([5])))
        return outcomes, packed

    check(step, allow_fallback=True)


def test_line_of_an_error() -> None:
    model = Counting()
    call = gradc.compile(model)
    call(torch.tensor([1]), 2.0)
    with pytest.raises(IndexError) as raised:
        call(torch.tensor([7]), 2.0)
    assert "self.embedding(number) * scales[0]" in "".join(traceback.format_tb(raised.value.__traceback__))
    assert raised.value.__context__ is None


@pytest.mark.parametrize("has_extension", [True, False])
def test_draws_before_an_index_out_of_range(has_extension: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Program 2630 of fuzz_python, seed 110: what was drawn is taken back before the frame runs again."""
    if not has_extension:
        monkeypatch.setattr(native, "is_built", lambda: False)

    class Dropping(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding, self.rate = nn.Embedding(3, 2), 0.25

        def forward(self, number: torch.Tensor) -> torch.Tensor:
            self.rate *= 2
            return (nn.functional.dropout(torch.ones(3)) * self.embedding(number).sum()).sum()

    def step(compile: Compiler) -> Any:
        model = Dropping()
        outcomes = _outcomes(compile(model), *((torch.tensor([number]),) for number in (1, 1, 7, 2)))
        return outcomes, model.rate, torch.rand(3)

    check(step)
