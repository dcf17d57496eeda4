"""``optimizer.zero_grad()`` inside of a compiled step: at once, and counted only where it cuts something."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn, optim

import gradc
from tests.oracle import check


def train(where: str, set_to_none: bool = True) -> Any:
    def run(compile: Any, x: torch.Tensor) -> list[Any]:
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
        optimizer, seen = optim.Adam(net.parameters()), []

        @compile
        def step(x: torch.Tensor) -> torch.Tensor:
            if where == "first":
                optimizer.zero_grad(set_to_none)
            y = net(x)
            if where == "between calculations":
                optimizer.zero_grad(set_to_none)
            loss = y.square().mean()
            if where == "before backward":
                optimizer.zero_grad(set_to_none)
            loss.backward()
            optimizer.step()
            if where == "last":
                optimizer.zero_grad(set_to_none)
            return loss.detach()

        for _ in range(4):
            seen += [step(x), *(None if p.grad is None else p.grad.clone() for p in net.parameters())]
        return [*seen, *net.parameters()]

    return run


@pytest.mark.parametrize("set_to_none", [True, False])
@pytest.mark.parametrize("where", ["first", "between calculations", "before backward", "last"])
def test_counted_where_it_ends_a_graph(where: str, set_to_none: bool) -> None:
    ends = where == "between calculations" or (where == "before backward" and not set_to_none)
    check(train(where, set_to_none), lambda: torch.randn(3, 4))
    gradc.reset()
    train(where, set_to_none)(gradc.compile, torch.randn(3, 4))
    assert gradc.counters["uncompiled"] == ({"gradc: zero_grad of an optimizer": 4} if ends else {})


def test_nothing_is_captured_again_as_gradients_come_and_go() -> None:
    net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
    optimizer = optim.SGD(net.parameters(), lr=0.1)
    num_graphs = []

    @gradc.compile
    def step(x: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = net(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    gradc.reset()
    for number in range(6):
        if number % 2:
            net[2].weight.grad = None
        step(torch.randn(3, 4))
        num_graphs.append(gradc.counters["stats"]["unique_graphs"])
    assert num_graphs == [num_graphs[0]] * 6


def test_gradients_are_freed_before_the_forward() -> None:
    weight = nn.Parameter(torch.ones(4))
    optimizer, seen = optim.SGD([weight], lr=0.1), list[bool]()

    class Looks(nn.Module):
        @torch.compiler.disable
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            seen.append(weight.grad is None)
            return x

    looks = Looks()

    @gradc.compile
    def step(x: torch.Tensor) -> None:
        optimizer.zero_grad()
        looks(x * weight).sum().backward()

    for _ in range(3):
        step(torch.ones(4))
    assert seen == [True] * 3
