"""A DDP-wrapped model trains with its backward captured: its leaves have hooks, so they run live, in eager's order."""

from __future__ import annotations

import os
import socket
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import gradc
from gradc.engine import compiled_autograd


def _train(rank: int, is_captured: bool) -> list[Any]:
    torch.manual_seed(0)
    net = DistributedDataParallel(nn.Sequential(*(nn.Linear(6, 6) for _ in range(4))), bucket_cap_mb=0.0001)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    seen: list[Any] = []
    for step in range(4):
        torch.manual_seed(2 * step + rank)
        loss = net(torch.randn(3, 6)).sin().sum()
        optimizer.zero_grad()
        with compiled_autograd.enable() if is_captured else compiled_autograd.disable():
            loss.backward()
        seen += [None if p.grad is None else p.grad.clone() for p in net.parameters()]
        optimizer.step()
    return seen


def _work(rank: int, port: int) -> None:
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=2)
    try:
        expected, found = _train(rank, False), _train(rank, True)
        assert all(torch.equal(a, b) for a, b in zip(expected, found, strict=True))
        assert gradc.counters["compiled_autograd"] == {"captures": 1, "hits": 3}
        assert not gradc.counters["fallbacks"]
    finally:
        dist.destroy_process_group()


def test_two_processes() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    mp.spawn(_work, args=(port,), nprocs=2)
