"""Programs of tests.devices.registry: gradients of gradients, whose sums follow from the order in which two threads made nodes.

In each some tensor gets three gradients or more, from nodes of both threads: two add up to the same bits in any order.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from tests.compilers import Compiler
from tests.devices.registry import HIGHER_ORDER, Device, leaf, program


def gradient(y: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return torch.autograd.grad(y.sum(), x, create_graph=True)[0]


@program(HIGHER_ORDER)
def partial_differential_equation(compile: Compiler, device: Device) -> Any:
    net = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1)).to(device)
    x, t = leaf(device, 16, 1), leaf(device, 16, 1)
    solve = compile(net)
    for _ in range(2):
        u = solve(torch.cat([x, t], 1))
        u_x = gradient(u, x)
        (gradient(u, t) + u * u_x - 0.1 * gradient(u_x, x)).square().mean().backward()
    return net, x, t


@program(HIGHER_ORDER)
def two_branches(compile: Compiler, device: Device) -> Any:
    """Of which eager may be through with one before it begins the other."""
    x, w, v = (leaf(device, 8, 8) for _ in range(3))
    run = compile(lambda x, w, v: (torch.tanh(x @ w) @ v).sin() + (torch.tanh(x @ v) @ w).cos() * torch.tanh(x @ w @ v))
    for _ in range(2):
        y = run(x, w, v)
        grad = gradient(y, x)
        (grad.square().sum() + (y * grad).sum()).backward()
    return x, w, v


@program(HIGHER_ORDER)
def two_outputs(compile: Compiler, device: Device) -> Any:
    x, w, v = (leaf(device, 8, 8) for _ in range(3))
    run = compile(lambda x, w, v: (torch.tanh(x @ w) @ v, torch.sin(x @ v) @ w))
    for _ in range(2):
        y, z = run(x, w, v)
        (gradient(y, x).square().sum() + gradient(z * y, x).cos().sum() + z.sum()).backward()
    return x, w, v


@program(HIGHER_ORDER)
def penalty(compile: Compiler, device: Device) -> Any:
    """Beside what another function makes, to which no gradient of a gradient comes."""
    x, w, v = (leaf(device, 8, 8) for _ in range(3))
    judge = lambda x: torch.tanh(torch.tanh(x @ w) @ v) @ w
    other, judged = compile(lambda x: judge(x).exp().sum()), compile(judge)
    other(x.detach())
    for _ in range(2):
        norm = gradient(judged(x), x).norm(dim=1)
        (other(x.detach()) + (norm - 1).square().mean()).backward()
    return x, w, v


@program(HIGHER_ORDER)
def inner_steps(compile: Compiler, device: Device) -> Any:
    x, w, v = (leaf(device, 8, 8) for _ in range(3))
    loss_of = compile(lambda x, w, v: (torch.tanh(torch.tanh(x @ w) @ v) @ w).square().mean())
    fast = [w, v]
    for _ in range(2):
        grads = torch.autograd.grad(loss_of(x, *fast), fast, create_graph=True)
        fast = [p - 0.5 * grad for p, grad in zip(fast, grads)]
    loss_of(x, *fast).backward()
    return x, w, v


@program(HIGHER_ORDER)
def third_order(compile: Compiler, device: Device) -> Any:
    x, w, v = (leaf(device, 8, 8) for _ in range(3))
    run = compile(lambda x: torch.tanh(torch.tanh(x @ w) @ v) * torch.sin(x @ v))
    for _ in range(2):
        y = run(x)
        grad = gradient(y, x)
        (gradient(grad.square(), x).square().sum() + (grad * y).sum()).backward()
    return x, w, v


@program(HIGHER_ORDER)
def half_precision(compile: Compiler, device: Device) -> Any:
    x, w, v = (leaf(device, 8, 8) for _ in range(3))
    run = compile(lambda x, w, v: (torch.tanh(x @ w) @ v).sin() + torch.tanh(x @ v) @ w)
    for _ in range(2):
        with torch.autocast(device.type, torch.bfloat16):
            y = run(x, w, v).float()
            grad = gradient(y, x)
        (grad.square().sum() + (y * grad).sum()).backward()
    return x, w, v


@program(HIGHER_ORDER)
def freed_before(compile: Compiler, device: Device) -> Any:
    """A graph that a first backward has freed: the error is eager's."""
    x, w = leaf(device, 8, 8), leaf(device, 8, 8)
    run = compile(lambda x, w: (torch.tanh(torch.tanh(x @ w) @ w) * 2).sum())
    y = run(x, w)
    y.backward()
    try:
        gradient(y, x)
    except RuntimeError as error:
        return str(error), x, w


def _network(device: Device, size: int) -> nn.Module:
    return nn.Sequential(nn.Linear(size, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1)).to(device)


@program(HIGHER_ORDER, "compiled autograd: ", "optimizer")
def whole_steps_of_a_differential_equation(compile: Compiler, device: Device) -> Any:
    net, x, t = _network(device, 2), leaf(device, 16, 1), leaf(device, 16, 1)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)

    def step(x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        u = net(torch.cat([x, t], 1))
        u_x = gradient(u, x)
        loss = (gradient(u, t) + u * u_x - 0.1 * gradient(u_x, x)).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    run = compile(step)
    losses = [run(x, t) for _ in range(7)]
    return losses, net, x, t


@program(HIGHER_ORDER, "compiled autograd: ", "optimizer")
def whole_steps_of_a_force_field(compile: Compiler, device: Device) -> Any:
    net, places, forces = _network(device, 3), leaf(device, 6, 3), leaf(device, 6, 3).detach()
    optimizer = torch.optim.SGD(net.parameters(), 0.1)

    def step() -> torch.Tensor:
        optimizer.zero_grad()
        at = places.detach().requires_grad_()
        energy = net((at[:, None] - at[None]).sin()).sum() + net(at).square().sum()
        found = -torch.autograd.grad(energy, at, create_graph=True)[0]
        loss = (found - forces).square().mean() + energy.square() * 1e-3
        loss.backward()
        optimizer.step()
        return loss.detach()

    run = compile(step)
    losses = [run() for _ in range(7)]
    return losses, net, places
