"""DDP and FSDP2: gradients reach buckets while backward runs, unused parameters are found, hooks run.

Each case runs in two processes with gloo on the loopback interface; they return what they saw to be compared.
"""

from __future__ import annotations

import os
import socket
from multiprocessing.queues import SimpleQueue

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from tests.compilers import find
from tests.semantics.registry import case

DDP = "DDP"


class Net(nn.Module):
    """Four layers; the last is used only if ``use_last``."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(6, 6) for _ in range(4))

    def forward(self, x, use_last=True):
        for layer in self.layers[: 4 if use_last else 3]:
            x = torch.tanh(layer(x))
        return x


def ddp(compile, **options):
    torch.manual_seed(0)
    return compile(DistributedDataParallel(Net(), **options))


def train(net, rank, steps=3, **options):
    """Train on data that differs by rank; the parameters and gradients at the end."""
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    generator = torch.Generator().manual_seed(rank)
    for _ in range(steps):
        optimizer.zero_grad()
        net(torch.randn(4, 6, generator=generator), **options).square().mean().backward()
        optimizer.step()
    return [to_plain(t) for p in net.parameters() for t in (p, p.grad)]


def to_plain(tensor):
    if tensor is None:
        return None
    return (tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor).detach().clone()


def plain(compile, rank):
    return train(ddp(compile), rank)


def unused(compile, rank):
    return train(ddp(compile, find_unused_parameters=True), rank, use_last=False)


def no_sync(compile, rank):
    net = ddp(compile)
    x = torch.full((4, 6), float(rank + 1))
    with net.no_sync():
        net(x).sum().backward()
    net(x).sum().backward()
    return [p.grad for p in net.parameters()]


def bucket_order(compile, rank):
    """A communication hook sees each bucket; with one parameter per bucket their order is that of the gradients."""
    dist._DEFAULT_FIRST_BUCKET_BYTES = 1
    torch.manual_seed(0)
    net = DistributedDataParallel(Net(), bucket_cap_mb=0.0001)
    events = []

    def hook(state, bucket):
        events.append(bucket.index())
        return dist.all_reduce(bucket.buffer(), async_op=True).get_future().then(lambda f: f.value()[0] / 2)

    net.register_comm_hook(None, hook)
    compiled = compile(net)
    for _ in range(3):
        compiled(torch.full((4, 6), float(rank + 1))).sum().backward()
    return events, [p.grad for p in net.parameters()]


def compiled_inside(compile, rank):
    """DDP around a compiled module."""
    torch.manual_seed(0)
    return train(DistributedDataParallel(compile(Net())), rank)


def fsdp(compile, rank):
    from torch.distributed.fsdp import fully_shard

    torch.manual_seed(0)
    net = Net()
    mesh = dist.init_device_mesh("cpu", (2,))
    for number, layer in enumerate(net.layers):
        net.layers[number] = fully_shard(compile(layer), mesh=mesh)
    fully_shard(net, mesh=mesh)
    return train(net, rank)


def _process(rank, program, name, port, queue):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    compiler = find(name)
    with compiler.backward():
        found = program(compiler, rank)
    assert name == "eager" or compiler.num_graphs(), "nothing was captured"
    queue.put((rank, torch.utils._pytree.tree_map_only(torch.Tensor, lambda t: t.tolist(), found)))
    dist.barrier()
    os._exit(0)  # gloo's threads may abort an orderly exit


def on_two_ranks(program, compile):
    """Run ``program`` in two processes under the compiler called as ``compile`` is; what they return, by rank."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    queue: SimpleQueue = mp.get_context("spawn").SimpleQueue()
    context = mp.spawn(_process, (program, compile.name, port, queue), nprocs=2, join=False)
    results = []
    while not context.join(timeout=0.1):
        while not queue.empty():
            results.append(queue.get())
    while not queue.empty():
        results.append(queue.get())
    return [found for _, found in sorted(results, key=lambda entry: entry[0])]


def add(name, program, **options):
    def step(compile):
        return on_two_ranks(program, compile)

    step.__name__, step.__module__ = f"test_{name}", __name__
    return case(DDP, min_graphs=0, **options)(step)


test_ddp = add("ddp", plain)
test_find_unused_parameters = add("find_unused_parameters", unused)
test_no_sync = add("no_sync", no_sync)
test_bucket_order = add("bucket_order", bucket_order)
test_compiled_module_inside_ddp = add("compiled_module_inside_ddp", compiled_inside)
test_fsdp2 = add("fsdp2", fsdp)
