"""Programs of tests.devices.registry: what is computed, under which autocast, and on how many devices."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from tests.compilers import Compiler
from tests.devices.registry import HIGHER_ORDER, Device, constant, leaf, other, program


def affine(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.tanh(x @ w + b)


# ---- forward and backward


@program()
def one_op(compile: Compiler, device: Device) -> Any:
    x = leaf(device, 5)
    y = compile(lambda x: x * 2)(x)
    y.sum().backward()
    return x, y


@program()
def mlp(compile: Compiler, device: Device) -> Any:
    net = nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.LayerNorm(8), nn.Linear(8, 3)).to(device)
    step = compile(net)
    losses = []
    for _ in range(3):
        loss = step(constant(device, 4, 6)).square().mean()
        loss.backward()
        losses.append(loss.detach())
    return net, losses


@program()
def convolutions(compile: Compiler, device: Device) -> Any:
    net = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(4, 2, 3))
    net.to(device)
    x = leaf(device, 2, 3, 8, 8)
    y = compile(net)(x)
    y.square().sum().backward()
    return net, x, y


@program()
def language_model(compile: Compiler, device: Device) -> Any:
    embedding, head = nn.Embedding(11, 8).to(device), nn.Linear(8, 11).to(device)
    tokens, targets = (torch.randint(11, (2, 5)).to(device) for _ in range(2))

    def loss_of(tokens, targets):
        hidden = embedding(tokens)
        scores = (hidden @ hidden.mT / 8**0.5 + torch.full((5, 5), float("-inf"), device=device).triu(1)).softmax(-1)
        return nn.functional.cross_entropy(head(scores @ hidden).flatten(0, 1), targets.flatten())

    loss = compile(loss_of)(tokens, targets)
    loss.backward()
    return embedding, head, loss


@program()
def attention_that_returns_undefined_tensors(compile: Compiler, device: Device) -> Any:
    """So do CUDA's flash, memory-efficient and cuDNN kernels; their backward takes some of them."""
    leaves = [leaf(device, 1, 2, 4, 8, dtype=torch.float16 if device.type == "cuda" else torch.float32) for _ in range(3)]

    def attend(q, k, v):
        return torch.ops.aten._scaled_dot_product_flash_attention(q, k, v, is_causal=True)[0].sin()

    for _ in range(2):
        compile(attend)(*leaves).sum().backward()
    return leaves


@program()
def recurrence(compile: Compiler, device: Device) -> Any:
    net = nn.RNN(4, 4, num_layers=2).to(device)
    x = leaf(device, 3, 2, 4)
    y, state = compile(lambda x: net(x.sin()))(x)  # cuDNN's kernels are left to torch
    (y.square().sum() + state.sum()).backward()
    return net, x, y, state


@program()
def gradients_add_up(compile: Compiler, device: Device) -> Any:
    w, b = leaf(device, 4, 4), leaf(device, 4)
    step = compile(affine)
    for _ in range(3):
        step(constant(device, 4, 4), w, b).sum().backward()
    return w, b


@program()
def twice_through_one_graph(compile: Compiler, device: Device) -> Any:
    x, w, b = leaf(device, 4, 4), leaf(device, 4, 4), leaf(device, 4)
    y = compile(affine)(x, w, b)
    y.backward(torch.ones(4, 4, device=device), retain_graph=True)
    y.backward(torch.ones(4, 4, device=device).t() * 2)
    return x, w, b, y


@program(HIGHER_ORDER)
def higher_order(compile: Compiler, device: Device) -> Any:
    x, w, b = leaf(device, 4, 4), leaf(device, 4, 4), leaf(device, 4)
    y = compile(affine)(x, w, b)
    (grad,) = torch.autograd.grad(y.square().sum(), x, create_graph=True)
    grad.square().sum().backward()
    return x, w, b, grad


@program()
def some_gradients(compile: Compiler, device: Device) -> Any:
    x, w, b = leaf(device, 4, 4), leaf(device, 4, 4), leaf(device, 4)
    y = compile(affine)(x, w, b)
    y.sum().backward(inputs=[w])
    return x, w, b


@program()
def several_sizes(compile: Compiler, device: Device) -> Any:
    w, b = leaf(device, 4, 4), leaf(device, 4)
    step = compile(affine)
    ys = [step(constant(device, batch, 4), w, b) for batch in (2, 3, 5, 7)]
    sum(y.square().sum() for y in ys).backward()
    return w, b, ys


@program()
def views_and_mutations(compile: Compiler, device: Device) -> Any:
    x = leaf(device, 4, 6)

    def run(x):
        y = x * 2
        y[:, 1:3].mul_(x[:, :2])
        y.t()[0] = 1.0
        return y, y.view(24)[5:]

    y, view = compile(run)(x)
    (y.sum() + view.square().sum()).backward()
    return x, y, view


@program()
def buffers_written(compile: Compiler, device: Device) -> Any:
    x, total = leaf(device, 4), constant(device, 4)

    def run(x):
        total.add_(x.detach())
        return (x * total).sum()

    step = compile(run)
    step(x).backward()
    step(x).backward()
    return x, total


@program()
def made_inside(compile: Compiler, device: Device) -> Any:
    x = leaf(device, 4, 4)

    def run(x):
        mask = torch.arange(4, device=device) > 1
        return x * mask + torch.zeros(4, device=device) + x.new_ones(4) * torch.eye(4).to(device)

    y = compile(run)(x)
    y.square().sum().backward()
    return x, y


@program()
def complex_numbers(compile: Compiler, device: Device) -> Any:
    x = leaf(device, 4, 4, dtype=torch.complex64)
    y = compile(lambda x: (x @ x.conj().T).abs())(x)
    y.sum().backward()
    return x, y


@program()
def double_precision(compile: Compiler, device: Device) -> Any:
    x, w, b = (leaf(device, *shape, dtype=torch.float64) for shape in ((4, 4), (4, 4), (4,)))
    y = compile(affine)(x, w, b)
    y.square().sum().backward()
    return x, w, b, y


@program()
def dropout(compile: Compiler, device: Device) -> Any:
    x = leaf(device, 4, 8)
    y = compile(lambda x: nn.functional.dropout(x.sin(), 0.5))(x)
    y.sum().backward()
    return x, y


@program()
def value_decides(compile: Compiler, device: Device) -> Any:
    x = leaf(device, 4)

    def run(x):
        y = x.exp()
        return y * 2 if y.sum().item() > 0 else y

    y = compile(run)(x)
    y.sum().backward()
    return x, y


@program()
def extremes(compile: Compiler, device: Device) -> Any:
    x, y = leaf(device, 4, 4), leaf(device)

    def run(x, y):
        return x.max() * x.prod() + x.masked_fill(x > 0, y).median()

    z = compile(run)(x, y)
    z.backward()
    return x, y, z


# ---- autocast


@program()
def autocast_forward(compile: Compiler, device: Device) -> Any:
    x, w, b = leaf(device, 4, 4), leaf(device, 4, 4), leaf(device, 4)
    step = compile(affine)
    with torch.autocast(device.type, torch.bfloat16):
        y = step(x, w, b)
    y.float().square().sum().backward()
    return x, w, b, y


@program()
def autocast_inside(compile: Compiler, device: Device) -> Any:
    x, w, b = leaf(device, 4, 4), leaf(device, 4, 4), leaf(device, 4)

    def run(x, w, b):
        with torch.autocast(device.type, torch.bfloat16):
            y = affine(x, w, b)
            return affine(y, w, b).float() + x.exp()

    y = compile(run)(x, w, b)
    y.square().sum().backward()
    return x, w, b, y


@program()
def autocast_on_and_off(compile: Compiler, device: Device) -> Any:
    x, w, b = leaf(device, 4, 4), leaf(device, 4, 4), leaf(device, 4)
    step = compile(affine)
    ys = []
    for is_enabled in (False, True, False, True):
        with torch.autocast(device.type, torch.bfloat16, enabled=is_enabled):
            ys.append(step(x, w, b))
            ys[-1].float().square().sum().backward()
    return x, w, b, ys


@program()
def backward_under_autocast(compile: Compiler, device: Device) -> Any:
    """One graph, four backwards: the autocast that counts is the one in force when backward runs."""
    off, on, half, off_half = (False, torch.bfloat16), (True, torch.bfloat16), (True, torch.float16), (False, torch.float16)
    return gradients_under(compile, device, off, on, half, off_half)


@program()
def backward_first_under_autocast(compile: Compiler, device: Device) -> Any:
    return gradients_under(compile, device, (True, torch.bfloat16), (False, torch.bfloat16))


def gradients_under(compile: Compiler, device: Device, *autocasts: tuple[bool, torch.dtype]) -> Any:
    """Those of a backward under each autocast (enabled, dtype), of forwards without."""
    x, w, b = leaf(device, 8, 8), leaf(device, 8, 8), leaf(device, 8)
    step = compile(affine)
    grads = []
    for enabled, dtype in autocasts:
        loss = step(x, w, b).square().sum()
        with torch.autocast(device.type, dtype, enabled=enabled):
            grads.append(torch.autograd.grad(loss, (x, w, b)))
    return grads


@program(HIGHER_ORDER)
def higher_order_under_autocast(compile: Compiler, device: Device) -> Any:
    x, w, b = leaf(device, 8, 8), leaf(device, 8, 8), leaf(device, 8)
    step = compile(affine)
    for enabled in (False, True):
        y = step(x, w, b).square().sum()
        with torch.autocast(device.type, torch.bfloat16, enabled=enabled):
            (grad,) = torch.autograd.grad(y, x, create_graph=True)
            grad.square().sum().backward()
    return x, w, b


@program()
def weights_cast_once(compile: Compiler, device: Device) -> Any:
    x, w = leaf(device, 8, 8), leaf(device, 8, 8)
    step = compile(lambda x, w: ((x @ w).relu() @ w).float())
    with torch.autocast(device.type, torch.bfloat16):
        y = step(x, w) + step(x, w)
    y.square().sum().backward()
    return x, w, y


@program()
def autocast_of_the_host(compile: Compiler, device: Device) -> Any:
    x, w, b = leaf(device, 4, 4), leaf(device, 4, 4), leaf(device, 4)
    step = compile(affine)
    with torch.autocast("cpu", torch.bfloat16):
        y = step(x, w, b)
        y.square().sum().backward()
    return x, w, b, y


# ---- several devices


@program("backward on several devices")
def host_and_device(compile: Compiler, device: Device) -> Any:
    near, far = leaf(torch.device("cpu"), 4, 4), leaf(device, 4, 4)
    y, z = compile(lambda near, far: ((near.sin() @ near).to(device) + far.cos(), far.exp().cpu() * near))(near, far)
    y.square().sum().backward(retain_graph=True)
    z.sum().backward()
    return near, far, y, z


@program()
def scalar_of_the_host(compile: Compiler, device: Device) -> Any:
    x, scale = leaf(device, 4), leaf(torch.device("cpu"))
    y = compile(lambda x, scale: (x * scale).sin() / scale)(x, scale)
    y.sum().backward()
    return x, scale, y


@program("backward on several devices", num_devices=2)
def two_devices(compile: Compiler, device: Device) -> Any:
    x, w = leaf(device, 4, 4), leaf(other(device), 4, 4)
    y = compile(lambda x, w: ((x.sin() @ x).to(other(device)) @ w).tanh())(x, w)
    y.square().sum().backward()
    return x, w, y


@program(num_devices=2)
def two_devices_apart(compile: Compiler, device: Device) -> Any:
    x, w = leaf(device, 4, 4), leaf(other(device), 4, 4)
    y, z = compile(lambda x, w: (x.sin() @ x, w.exp() @ w))(x, w)
    torch.autograd.backward([y, z], [torch.ones_like(y), torch.ones_like(z)])
    return x, w, y, z


@program(num_devices=2)
def one_function_on_each(compile: Compiler, device: Device) -> Any:
    step = compile(affine)
    made = []
    for place in (device, other(device), torch.device("cpu"), device):
        x, w, b = leaf(place, 4, 4), leaf(place, 4, 4), leaf(place, 4)
        step(x, w, b).square().sum().backward()
        made.append((x, w, b))
    return made


@program("tracing failed", num_devices=2)
def devices_that_do_not_meet(compile: Compiler, device: Device) -> Any:
    x, w = leaf(device, 4, 4), leaf(other(device), 4, 4)
    try:
        return compile(lambda x, w: x @ w)(x, w)
    except RuntimeError as error:
        return type(error).__name__, x, w


@program()
def gradient_of_the_host(compile: Compiler, device: Device) -> Any:
    x = leaf(device, 4)
    y = compile(lambda x: x.sin() * 2)(x)
    try:
        y.backward(torch.ones(4))
    except RuntimeError as error:
        return type(error).__name__, x
    return x
