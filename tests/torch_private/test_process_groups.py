"""Compiled code asks again for rank and world size where the default process group is another one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, distributed
from torch.testing._internal.distributed.fake_pg import FakeStore

import gradc
from tests.oracle import check, leaf


@pytest.fixture(autouse=True)
def without_group() -> Iterator[None]:
    yield
    leave()


def enter(rank: int, size: int) -> None:
    leave()
    distributed.init_process_group("fake", store=FakeStore(), rank=rank, world_size=size)


def leave() -> None:
    if distributed.is_initialized():
        distributed.destroy_process_group()


def of_rank(x: Tensor) -> Tensor:
    return x * (2.0 + distributed.get_rank())


def of_size(x: Tensor) -> Tensor:
    return x / distributed.get_world_size(group=None)


def of_ranks(x: Tensor) -> Tensor:
    return x * sum(distributed.get_process_group_ranks(None))


def of_the_first(x: Tensor) -> Tensor:
    return x * 2 if not distributed.is_initialized() or distributed.get_rank() == 0 else x * 3


@pytest.mark.parametrize("function", [of_rank, of_size, of_ranks, of_the_first])
def test_a_process_group_that_is_made_again_has_another_rank_and_size(function: Any) -> None:
    def step(compile: Any, x: Tensor) -> Any:
        run, gradients = compile(function), []
        for rank, size in ((0, 2), (1, 4), (0, 2)):
            enter(rank, size)
            gradients += torch.autograd.grad(run(x).sum(), x)
        return gradients

    check(step, leaf(3))


def test_a_process_group_that_is_made_after_the_first_call_is_there() -> None:
    def step(compile: Any, x: Tensor) -> Any:
        run, gradients = compile(of_the_first), []
        for change in (leave, lambda: enter(1, 2), leave):
            change()
            gradients += torch.autograd.grad(run(x).sum(), x)
        return gradients

    check(step, leaf(3))


def test_a_rank_is_asked_for_where_there_is_no_group_any_more() -> None:
    def step(compile: Any, x: Tensor) -> Any:
        run = compile(of_rank)
        enter(0, 2)
        run(x)
        leave()
        return run(x)

    check(step, leaf(3), compare_messages=True)


@pytest.mark.usefixtures("nothing_captured")
def test_a_group_made_again_with_the_same_rank_and_size_is_not_captured_anew() -> None:
    function = gradc.compile(lambda x: x * distributed.get_rank() / distributed.get_world_size())
    for _ in range(3):
        enter(1, 4)
        function(torch.ones(3))
    assert gradc.counters["stats"]["unique_graphs"] == 1
