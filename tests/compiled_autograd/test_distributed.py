"""DDP and FSDP2 models train with their backward captured: leaves and nodes with hooks run live, in eager's order."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

import gradc
from gradc import compiled_autograd
from gradc.bits import same_bits

STEPS = 4


def _ddp() -> nn.Module:
    return DistributedDataParallel(nn.Sequential(*(nn.Linear(6, 6) for _ in range(4))), bucket_cap_mb=0.0001)


def _fsdp2() -> nn.Module:
    net = nn.Sequential(*(nn.Sequential(nn.Linear(6, 6), nn.Tanh()) for _ in range(4)))
    mesh = dist.init_device_mesh("cpu", (2,))
    for layer in net:
        fully_shard(layer, mesh=mesh)
    return fully_shard(net, mesh=mesh)


def _train(make: Callable[[], nn.Module], rank: int, is_captured: bool) -> list[Any]:
    torch.manual_seed(0)
    net = make()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    seen: list[Any] = []
    for step in range(STEPS):
        torch.manual_seed(2 * step + rank)
        loss = net(torch.randn(3, 6)).sin().sum()
        optimizer.zero_grad()
        with compiled_autograd.enable() if is_captured else compiled_autograd.disable():
            loss.backward()
        seen += [_plain(p.grad) for p in net.parameters()]
        optimizer.step()
    return [*seen, *(_plain(p) for p in net.parameters())]


def _plain(tensor: Any) -> Any:
    """The whole tensor, on this process."""
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).detach().clone()


def _work(rank: int, port: int, make: Callable[[], nn.Module], fallbacks: dict[str, int]) -> None:
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=2)
    try:
        expected, found = _train(make, rank, False), _train(make, rank, True)
        assert expected and all(same_bits(a, b) for a, b in zip(expected, found, strict=True))
        counts = gradc.counters["compiled_autograd"], dict(gradc.counters["fallbacks"])
        num_run = STEPS - sum(fallbacks.values())
        assert counts[0]["captures"] + counts[0]["hits"] == num_run and counts[1] == fallbacks, counts
        assert num_run == 0 or counts[0]["captures"] == 1, counts
    finally:
        dist.destroy_process_group()
    # In eager, too, FSDP2's group lives on, and its threads may free tensors while the interpreter ends: pytorch#179291
    os._exit(0)


@pytest.mark.parametrize(("make", "fallbacks"), [(_ddp, {}), (_fsdp2, {})])
def test_two_processes(make: Callable[[], nn.Module], fallbacks: dict[str, int]) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    mp.spawn(_work, args=(port, make, fallbacks), nprocs=2)
