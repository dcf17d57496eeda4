"""``backward()`` in a loop over a short range: each iteration is compiled, and gradients add up as in eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import gradc
from tests.oracle import check, constant

Tensor = torch.Tensor
NUM_CALLS = 4


class Training:
    def __init__(self) -> None:
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.1), nn.Tanh(), nn.Linear(4, 2))
        self.optimizer = torch.optim.AdamW(self.net.parameters())

    def loss_of(self, x: Tensor) -> Tensor:
        return self.net(x).square().mean()


def accumulated(t: Training, xs: Tensor, n: int) -> Tensor:
    for i in range(n):
        loss = t.loss_of(xs[i]) / n
        loss.backward()
    t.optimizer.step()
    t.optimizer.zero_grad(set_to_none=True)
    return loss.detach()


def steps(t: Training, xs: Tensor, n: int) -> list[Tensor]:
    losses = []
    for i in range(n):
        t.optimizer.zero_grad()
        loss = t.loss_of(xs[i])
        loss.backward()
        t.optimizer.step()
        losses.append(loss.detach())
    return losses


def ended_early(t: Training, xs: Tensor, n: int) -> int:
    for i in range(0, 3 * n, 3):
        if i == 0:
            continue
        t.loss_of(xs[i % 4] * i).backward()
        if i > 6:
            break
    else:
        t.optimizer.step()
    return i


def in_another_loop(t: Training, xs: Tensor, n: int) -> None:
    for i in range(2):
        for j in range(n):
            (t.loss_of(xs[j]) * (i + 1)).backward()
    t.optimizer.step()


def over_a_list(t: Training, xs: Tensor, n: int) -> int:
    """That grows while it is read."""
    numbers = list(range(n))
    for i in numbers:
        t.loss_of(xs[i % 4]).backward()
        if len(numbers) < 6:
            numbers.append(i + 1)
    t.optimizer.step()
    return len(numbers)


def with_a_loop_before_and_after(t: Training, xs: Tensor, n: int) -> Tensor:
    total = xs.new_zeros(())
    for i in range(n):
        total = total + xs[i].sum()
    for i in range(n):
        t.loss_of(xs[i] * total).backward()
    for p in t.net.parameters():
        total = total + p.grad.sum()
    t.optimizer.step()
    return total


LOOPS = [accumulated, steps, ended_early, in_another_loop, over_a_list, with_a_loop_before_and_after]


@pytest.mark.parametrize("n", [1, 2, 4])
@pytest.mark.parametrize("loop", LOOPS)
def test_as_in_eager(loop: Callable[[Training, Tensor, int], Any], n: int) -> None:
    def run(compile: Any, xs: Tensor) -> Any:
        t = Training()
        compiled = compile(lambda xs: loop(t, xs, n))
        results = [compiled(xs + call) for call in range(NUM_CALLS)]
        return results, t.net.state_dict(), [p.grad for p in t.net.parameters()], list(t.optimizer.state.values())

    check(run, constant(4, 3, 4), allow_fallback=True)


def test_another_number_of_iterations_at_each_call() -> None:
    def run(compile: Any, xs: Tensor) -> Any:
        t = Training()
        compiled = compile(lambda xs, n: accumulated(t, xs, n))
        return [compiled(xs, n) for n in (2, 4, 1, 3, 4, 2)], t.net.state_dict()

    check(run, constant(4, 3, 4), allow_fallback=True)


@pytest.mark.parametrize("n", [2, 4])
def test_all_is_compiled(n: int) -> None:
    t = Training()
    torch._dynamo.reset()
    gradc.counters.clear()
    run = gradc.compile(lambda xs: accumulated(t, xs, n))
    for _ in range(3):
        run(torch.ones(4, 3, 4))
    assert not gradc.counters["uncompiled"] and not gradc.counters["compiled_autograd"]
    assert gradc.counters["optim"]["native steps"] == 3


def test_a_long_loop_is_left_to_python() -> None:
    t = Training()
    torch._dynamo.reset()
    gradc.counters.clear()
    run = gradc.compile(lambda xs: accumulated(t, xs, 20))
    run(torch.ones(20, 3, 4))
    assert gradc.counters["uncompiled"]["Unsupported Tensor.backward() call"] == 1
