"""Tensors that are made of a ``collections.deque``."""

from __future__ import annotations

from collections import deque
from typing import Any

import torch

import gradc
from tests.oracle import check, leaf


def returns_of(rewards: deque[float]) -> deque[float]:
    found, total = deque[float](), 0.0
    for reward in reversed(rewards):
        total = reward + 0.5 * total
        found.appendleft(total)
    return found


def test_of_one_from_outside_and_of_one_made_inside() -> None:
    def step(compile: Any, x: torch.Tensor) -> Any:
        def loss(x: torch.Tensor, rewards: deque[float]) -> Any:
            targets, whole = torch.tensor(rewards), torch.as_tensor(deque([1, 2, 3]))
            return (x.sin() * targets).sum() * whole, torch.tensor(returns_of(rewards), dtype=torch.float64)

        run, rewards, seen = compile(loss), deque([1.0, 2.0, 3.0]), []
        for number in range(5):
            seen.append(run(x, rewards))
            seen[-1][0].sum().backward()
            rewards.append(number / 2)
            rewards.popleft()
        return seen

    check(step, leaf(3), allow_fallback=True)


def test_one_graph() -> None:
    torch._dynamo.reset()
    gradc.counters.clear()
    run = gradc.compile(lambda x, numbers: (x.sin() * torch.tensor(numbers)).sum())
    for _ in range(3):
        run(torch.ones(3, requires_grad=True), deque([1.0, 2.0, 3.0])).backward()
    assert gradc.counters["stats"]["unique_graphs"] == 1 and not gradc.counters["uncompiled"]


def test_of_tensors_and_of_nothing() -> None:
    def step(compile: Any, x: torch.Tensor) -> Any:
        run = compile(lambda x: (x.sin(), torch.tensor(deque([torch.ones(()), torch.zeros(())])), torch.tensor(deque())))
        return run(x), run(x)

    check(step, leaf(3), allow_fallback=True)
