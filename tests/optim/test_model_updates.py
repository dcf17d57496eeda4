"""The optimizer of a compiled model updates natively, unasked: eager's bits, and nothing that somebody else gave it is lost."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch._dynamo.utils import counters
from torch.optim import SGD, AdamW, Optimizer
from torch.optim.lr_scheduler import LinearLR
from torch.optim.optimizer import _global_optimizer_post_hooks as hooks_of_all

import gradc
from gradc.bits import same_bits
from gradc.optim.native_step import is_native
from tests.observe import differences, observe


@pytest.fixture(autouse=True)
def nobody_is_looked_at() -> Iterator[None]:
    """Modules that other tests compiled would have their optimizers looked at as well."""
    gradc.reset()
    yield
    gradc.reset()


@pytest.fixture(autouse=True)
def trials(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is compiled is tried beside eager, as it is for users: then its calls come by."""
    monkeypatch.setattr(gradc.config, "compare_with_eager", True)


def model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))


def train(called: nn.Module, optimizer: Optimizer) -> torch.Tensor:
    optimizer.zero_grad()
    loss = called(torch.arange(3.0)).square().sum()
    loss.backward()
    optimizer.step()
    return loss.detach()


@pytest.mark.parametrize("kind", [AdamW, SGD])
def test_the_optimizer_of_a_compiled_model_is_native_from_its_second_step_on(kind: Any) -> None:
    theirs, ours = model(), model()
    by_torch, optimizer = kind(theirs.parameters(), lr=0.1), kind(ours.parameters(), lr=0.1)
    compiled = gradc.compile(ours)
    for step in range(5):
        assert is_native(optimizer) is (step > 0)
        assert same_bits(train(compiled, optimizer), train(theirs, by_torch))
        assert not differences(observe((theirs, by_torch), {}, None, None), observe((ours, optimizer), {}, None, None))
    assert not is_native(by_torch)


def test_an_optimizer_of_other_parameters_is_left_as_it_is() -> None:
    compiled, other = gradc.compile(model()), model()
    optimizer = AdamW(other.parameters())
    compiled(torch.arange(3.0))
    assert hooks_of_all
    train(other, optimizer)
    assert not is_native(optimizer)


def test_few_steps_are_looked_at() -> None:
    compiled, other = gradc.compile(model()), model()
    optimizer = AdamW(other.parameters())
    assert not hooks_of_all
    compiled(torch.arange(3.0))
    for _ in range(8):
        assert len(hooks_of_all) == 1
        train(other, optimizer)
    assert not hooks_of_all
    late = AdamW(compiled.parameters())
    train(compiled, late)
    assert not is_native(late)


def test_two_optimizers_of_a_model() -> None:
    compiled = gradc.compile(model())
    first, second = AdamW(compiled[0].parameters()), SGD(compiled[2].parameters())
    for _ in range(2):
        train(compiled, first)
        train(compiled, second)
    assert is_native(first) and is_native(second)


def test_a_schedule_goes_on() -> None:
    compiled = gradc.compile(model())
    optimizer = AdamW(compiled.parameters(), lr=0.1)
    schedule = LinearLR(optimizer, total_iters=4)
    rates = []
    for _ in range(5):
        train(compiled, optimizer)
        schedule.step()
        rates += schedule.get_last_lr()
    assert is_native(optimizer) and rates[-1] == 0.1


def test_a_step_of_its_own_is_called() -> None:
    class Counting(AdamW):
        calls = 0

        def step(self, closure: Any = None) -> Any:
            self.calls += 1
            return super().step(closure)

    compiled = gradc.compile(model())
    optimizer = Counting(compiled.parameters())
    for _ in range(3):
        train(compiled, optimizer)
    assert optimizer.calls == 3 and not is_native(optimizer)


def test_a_step_that_is_compiled_as_a_whole_meets_the_optimizer_as_it_was() -> None:
    compiled = gradc.compile(model())
    optimizer = AdamW(compiled.parameters())
    step = gradc.compile(lambda: train(compiled, optimizer))
    for _ in range(3):
        step()
    assert "step" not in vars(optimizer) and gradc.counters["optim"]["native steps"] >= 3


def test_the_backend_that_runs_eagers_calls_leaves_the_optimizer_alone() -> None:
    compiled = gradc.compile(model(), backend="eager")
    optimizer = AdamW(compiled.parameters())
    for _ in range(3):
        train(compiled, optimizer)
    assert not is_native(optimizer)


def test_another_compilers_step_is_traced_as_if_nobody_looked() -> None:
    def num_graphs(called: nn.Module) -> int:
        torch.compiler.reset()
        counters.clear()
        optimizer = AdamW(called.parameters())
        step = torch.compile(lambda: optimizer.step(), backend="eager")
        for _ in range(10):
            called(torch.arange(3.0)).sum().backward()
            step()
        assert not is_native(optimizer)
        return counters["stats"]["unique_graphs"]

    plain = {"compare_with_eager": False}
    num_graphs(gradc.compile(model(), options=plain))  # of a process's first, Dynamo makes one more
    looked_at = num_graphs(gradc.compile(model()))
    assert looked_at == num_graphs(gradc.compile(model(), options=plain))
