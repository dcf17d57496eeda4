"""Programs of tests.devices.registry: what surrounds a backward, and who else takes part in a step."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from tests.compilers import Compiler
from tests.devices.computations import affine
from tests.devices.registry import HIGHER_ORDER, Device, constant, leaf, other, program
from tests.devices.simulated import NAME


@program()
def hooks(compile: Compiler, device: Device) -> Any:
    x, w, b = leaf(device, 4, 4), leaf(device, 4, 4), leaf(device, 4)
    seen: list[Any] = []
    x.register_hook(lambda grad: grad * 2)
    w.register_hook(lambda grad: seen.append(("w", grad.clone())))
    b.register_post_accumulate_grad_hook(lambda leaf: seen.append(("b", leaf.grad.clone())))
    y = compile(affine)(x, w, b)
    y.register_hook(lambda grad: seen.append(("y", grad.clone())))
    y.square().sum().backward()
    return x, w, b, seen


@program()
def hook_that_fails(compile: Compiler, device: Device) -> Any:
    x, w, b = leaf(device, 4, 4), leaf(device, 4, 4), leaf(device, 4)

    def fail(grad):
        raise ValueError("not this one")

    step = compile(affine)
    handle = x.register_hook(fail)
    try:
        step(x, w, b).sum().backward()
    except ValueError as error:
        handle.remove()
        step(x, w, b).sum().backward()
        return str(error), x, w, b


@program("saved-tensors hooks")
def saved_on_the_host(compile: Compiler, device: Device) -> Any:
    x, w, b = leaf(device, 4, 4), leaf(device, 4, 4), leaf(device, 4)
    with torch.autograd.graph.save_on_cpu():
        y = compile(affine)(x, w, b)
    y.square().sum().backward()
    return x, w, b, y


@program()
def checkpointed(compile: Compiler, device: Device) -> Any:
    x, w, b = leaf(device, 4, 4), leaf(device, 4, 4), leaf(device, 4)

    def run(x, w, b):
        return affine(checkpoint(affine, x, w, b, use_reentrant=False), w, b)

    y = compile(run)(x, w, b)
    y.square().sum().backward()
    return x, w, b, y


@program()
def checkpoint_around(compile: Compiler, device: Device) -> Any:
    """Backward starts another backward, in the device's thread."""
    x, w, b = leaf(device, 4, 4), leaf(device, 4, 4), leaf(device, 4)
    y = checkpoint(compile(affine), x, w, b, use_reentrant=True)
    y.square().sum().backward()
    return x, w, b, y


class Doubled(torch.autograd.Function):
    """Twice its argument, with a gradient of its own making."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x * 2

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        return grad * 2 + x * 0


@program()
def function_of_the_users(compile: Compiler, device: Device) -> Any:
    x = leaf(device, 4)
    y = compile(lambda x: Doubled.apply(x.sin()).exp())(x)
    y.sum().backward()
    return x, y


@program("function transform", HIGHER_ORDER)
def function_transform(compile: Compiler, device: Device) -> Any:
    x, w = leaf(device, 4, 4), leaf(device, 4, 4)
    y = compile(lambda x, w: torch.func.grad(lambda x: (x @ w).tanh().sum())(x) @ w)(x, w)
    y.square().sum().backward()
    return x, w, y


@program()
def first_gradient_inside(compile: Compiler, device: Device) -> Any:
    """Which leaves no graph: one region, with the pass of the engine in it."""
    x, w, v = leaf(device, 8, 8), leaf(device, 8, 8), leaf(device, 8, 8)

    def run(x, w, v):
        y = torch.tanh(x @ w) @ v + torch.sin(x @ v) @ w
        of_x, of_w = torch.autograd.grad(y.square().sum(), (x, w), retain_graph=True)
        return (y * of_x).sum() + (of_w * v).sum()

    step = compile(run)
    for _ in range(2):
        step(x, w, v).backward()
    return x, w, v


@program(HIGHER_ORDER)
def gradient_inside(compile: Compiler, device: Device) -> Any:
    x, w = leaf(device, 4, 4), leaf(device, 4, 4)

    def run(x, w):
        (grad,) = torch.autograd.grad((x @ w).tanh().sum(), x, create_graph=True)
        return grad.square().sum()

    y = compile(run)(x, w)
    y.backward()
    return x, w, y


@program(HIGHER_ORDER, "compiled autograd: create_graph")
def gradient_twice_inside(compile: Compiler, device: Device) -> Any:
    x, w, v = (leaf(device, 8, 8) for _ in range(3))

    def run(x):
        y = torch.tanh(torch.tanh(x @ w) @ v) * torch.sin(x @ v)
        (grad,) = torch.autograd.grad(y.sum(), x, create_graph=True)
        (again,) = torch.autograd.grad((grad * y).sum(), x, create_graph=True)
        return (again * y).sum() + grad.square().sum()

    step = compile(run)
    for _ in range(2):
        step(x).backward()
    return x, w, v


def _trained(
    compile: Compiler, device: Device, optimizer: type[torch.optim.Optimizer], is_compiled: bool, **settings: Any
) -> Any:
    net = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 2)).to(device)
    steps = optimizer(net.parameters(), lr=0.1, **settings)
    if is_compiled:
        compile(steps)
    forward = compile(net)
    for _ in range(3):
        steps.zero_grad()
        forward(constant(device, 4, 6)).square().mean().backward()
        steps.step()
    return net, steps


@program()
def sgd(compile: Compiler, device: Device) -> Any:
    return _trained(compile, device, torch.optim.SGD, True, momentum=0.9)


@program()
def adamw(compile: Compiler, device: Device) -> Any:
    return _trained(compile, device, torch.optim.AdamW, True)


@program()
def adam_one_by_one(compile: Compiler, device: Device) -> Any:
    return _trained(compile, device, torch.optim.Adam, True, foreach=False)


@program()
def optimizer_left_alone(compile: Compiler, device: Device) -> Any:
    return _trained(compile, device, torch.optim.RMSprop, False)


@program("optimizer")
def whole_step(compile: Compiler, device: Device) -> Any:
    net = nn.Linear(6, 2).to(device)
    steps = torch.optim.AdamW(net.parameters(), lr=0.1)

    def train(x):
        steps.zero_grad()
        loss = net(x).square().mean()
        loss.backward()
        steps.step()
        return loss.detach()

    run = compile(train)
    return net, [run(constant(device, 4, 6)) for _ in range(3)]


@program()
def scaled_gradients(compile: Compiler, device: Device) -> Any:
    net = nn.Linear(6, 2).to(device)
    steps, scaler = torch.optim.SGD(net.parameters(), lr=0.1), torch.amp.GradScaler(device.type)
    forward = compile(net)
    for _ in range(3):
        steps.zero_grad()
        with torch.autocast(device.type, torch.float16):
            loss = forward(constant(device, 4, 6)).float().square().mean()
        scaler.scale(loss).backward()
        scaler.step(steps)
        scaler.update()
    return net, scaler.get_scale()


@program()
def in_another_thread(compile: Compiler, device: Device) -> Any:
    x, w, b = leaf(device, 4, 4), leaf(device, 4, 4), leaf(device, 4)
    y = compile(affine)(x, w, b).square().sum()
    thread = threading.Thread(target=y.backward)
    thread.start()
    thread.join()
    return x, w, b


@program(num_devices=2)
def in_two_threads(compile: Compiler, device: Device) -> Any:
    step = compile(affine)
    made = [[leaf(place, 4, 4), leaf(place, 4, 4), leaf(place, 4)] for place in (device, other(device))]
    step(*made[0]).sum().backward()  # Dynamo traces in one thread at a time
    step(*made[1]).sum().backward()

    def train(arguments):
        for _ in range(20):
            step(*arguments).square().sum().backward()

    threads = [threading.Thread(target=train, args=(arguments,)) for arguments in made]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return made


@program()
def on_a_stream(compile: Compiler, device: Device) -> Any:
    """Backward runs on the stream that forward ran on."""
    x, w, b = leaf(device, 4, 4), leaf(device, 4, 4), leaf(device, 4)
    step, stream = compile(affine), torch.Stream(device)
    with stream:
        y = step(x, w, b).square().sum()
    with products_of(stream) as found:
        y.backward()
    torch.accelerator.synchronize()
    return x, w, b, y, sorted(found)


@program("backward on several devices", num_devices=2)
def on_a_stream_of_each(compile: Compiler, device: Device) -> Any:
    x, w = leaf(device, 4, 4), leaf(other(device), 4, 4)
    step = compile(lambda x, w: ((x.sin() @ x).to(other(device)) @ w).tanh().sum())
    streams = torch.Stream(device), torch.Stream(other(device))
    with streams[0], streams[1]:
        y = step(x, w)
    with products_of(*streams) as found:
        y.backward()
    torch.accelerator.synchronize()
    return x, w, y, sorted(found)


@contextlib.contextmanager
def products_of(*streams: torch.Stream, op: str = "aten::mm") -> Iterator[set[str]]:
    """On which devices matrices are multiplied inside, and whether on one of these streams. Only the simulated device tells."""
    names = {f"{stream.device_index}.{stream.stream_id}": f"{stream.device_index}: as forward" for stream in streams}
    found: set[str] = set()
    if streams[0].device.type != NAME:
        yield found
        return
    torch.ops.simulated.watch(True)
    yield found
    calls = [call.split() for call in torch.ops.simulated.watch(False)]
    found |= {names.get(where, f"{where[0]}: elsewhere") for called, where in calls if called == op}


@program()
def data_parallel_buckets(compile: Compiler, device: Device) -> Any:
    """Gradients that are views of one bucket, as data parallelism lays them out."""
    w, b = leaf(device, 4, 4), leaf(device, 4)
    bucket = torch.zeros(20, device=device)
    w.grad, b.grad = bucket[:16].view(4, 4), bucket[16:]
    step = compile(affine)
    for _ in range(2):
        step(constant(device, 4, 4), w, b).square().sum().backward()
    return w, b, bucket


@program()
def verified(compile: Compiler, device: Device) -> Any:
    """In shadow mode: the first calls run beside in eager, on copies."""
    w, b = leaf(device, 4, 4), leaf(device, 4)
    step = compile(lambda x, w, b: nn.functional.dropout(affine(x, w, b), 0.5), options={"verify": 2})
    for _ in range(4):
        step(constant(device, 4, 4), w, b).square().sum().backward()
    return w, b


@program()
def stream_inside(compile: Compiler, device: Device) -> Any:
    """A part of the function on a stream of its own, and so the same part of backward."""
    x, w, b = leaf(device, 4, 4), leaf(device, 4, 4), leaf(device, 4)
    stream = torch.Stream(device)

    def run(x, w, b):
        with stream:
            return affine(x, w, b).sum()

    torch.accelerator.synchronize()  # the stream waits for nobody
    with products_of(stream) as forward:
        y = compile(run)(x, w, b)
    with products_of(stream) as backward:
        y.backward()
    torch.accelerator.synchronize()
    return x, w, b, y, sorted(forward), sorted(backward)


@program(num_devices=2)
def another_device_is_current(compile: Compiler, device: Device) -> Any:
    x, w, b = leaf(device, 4, 4), leaf(device, 4, 4), leaf(device, 4)
    step = compile(affine)
    with torch.get_device_module(device).device(other(device).index):
        y = step(x, w, b).square().sum()
        y.backward()
        made = torch.ones(3, device=device.type)
    return x, w, b, y, made, made.device.index


@program()
def moved_while_compiled(compile: Compiler, device: Device) -> Any:
    """A module that goes from the host to the device, and back."""
    net = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2))
    step = compile(net)
    losses = []
    for place in (torch.device("cpu"), device, torch.device("cpu")):
        net.to(place)
        loss = step(constant(place, 3, 4)).square().mean()
        loss.backward()
        losses.append(loss.detach())
    return net, losses


@program("stream")
def stream_waits_inside(compile: Compiler, device: Device) -> Any:
    x, stream = leaf(device, 4), torch.Stream(device)

    def run(x):
        torch.accelerator.current_stream(device).wait_stream(stream)
        return x.sin() * 2

    step = compile(run)
    with products_of(stream, op="wait") as found:
        y = step(x)
        y.sum().backward()
    return x, y, sorted(found)
