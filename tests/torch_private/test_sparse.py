"""Sparse tensors in compiled code: Python makes the calls with them, and what is around stays compiled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import gradc
from tests.oracle import check, constant, leaf

CALLS: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "spmm": lambda adjacency, x: torch.spmm(adjacency, x),
    "operator": lambda adjacency, x: adjacency @ x,
    "method": lambda adjacency, x: adjacency.mm(x),
    "dense": lambda adjacency, x: adjacency.to_dense() * x,
    "shape": lambda adjacency, x: x * adjacency.shape[0] if adjacency.is_sparse else x,
    "values": lambda adjacency, x: (adjacency * 2).coalesce().values() * x,
}


def coo() -> torch.Tensor:
    return torch.eye(4).to_sparse()


@pytest.mark.parametrize("make", [coo, lambda: torch.eye(4).to_sparse_csr()])
@pytest.mark.parametrize("name", CALLS)
def test_as_an_argument(name: str, make: Callable[[], torch.Tensor]) -> None:
    call = CALLS[name]

    def step(compile: Any, adjacency: torch.Tensor, x: torch.Tensor) -> Any:
        run, seen = compile(lambda x, adjacency: call(adjacency, x.sin().relu()).cos().sum()), []
        for _ in range(3):
            try:
                seen.append(run(x, adjacency))
                seen[-1].backward()
            except (RuntimeError, AttributeError) as error:  # not every layout has each call
                seen.append(type(error).__name__)
        return seen

    check(step, make, leaf(4, 4), allow_fallback=True)


def test_what_is_around_is_compiled() -> None:
    linear, adjacency = nn.Linear(4, 4), coo()
    torch._dynamo.reset()
    gradc.counters.clear()
    run = gradc.compile(lambda x, adjacency: torch.spmm(adjacency, linear(x).relu()).relu().sum())
    for _ in range(3):
        run(torch.randn(4, 4), adjacency).backward()
    assert gradc.counters["stats"]["unique_graphs"] == 2
    assert dict(gradc.counters["uncompiled"]) == {"gradc: sparse tensor": 3}


def test_now_sparse_and_now_dense() -> None:
    def step(compile: Any, x: torch.Tensor) -> Any:
        run = compile(lambda x, adjacency: torch.mm(adjacency, x.sin()).cos())
        kinds = coo(), torch.eye(4), torch.eye(4).to_sparse_csr(), coo()
        return [run(x, adjacency) for adjacency in kinds], [type(adjacency) for adjacency in kinds]

    check(step, leaf(4, 4), allow_fallback=True)


def test_one_that_a_module_holds_and_one_that_is_learned() -> None:
    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.adjacency = coo()
            self.linear = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.sparse.mm(self.adjacency, self.linear(x)).relu()

    def step(compile: Any, layer: Layer, x: torch.Tensor) -> Any:
        run, seen = compile(layer), []
        weight = coo().requires_grad_()
        weighted = compile(lambda weight, x: torch.sparse.mm(weight, x.sin()).sum())
        for _ in range(3):
            seen += [run(x), weighted(weight, x)]
            torch.autograd.backward([seen[-2].sum(), seen[-1]])
        assert weight.grad is not None
        return seen, weight.grad.to_dense()

    check(step, Layer, constant(4, 4), allow_fallback=True)
