"""Burgers' equation solved by a physics-informed network: the loss holds second derivatives of the network by its inputs.

Run it: python examples/physics_informed.py [--short] [--out FOLDER]. Without its columns of times, it printed

    run            final loss  bitwise eager  largest param diff
    -------------  ----------  -------------  ------------------
    eager            0.084576            yes                   0
    torch.compile           -         raises                   -
    gradc            0.084576            yes                   0
    torch.compile: RuntimeError: The differentiated Tensor at index 0 appears to not have been used in the graph. ...
    gradc ran eagerly: nothing
"""

from __future__ import annotations

import math

import torch
from _side_by_side import main
from torch import Tensor, nn
from torch.nn import functional as F

VISCOSITY = 0.01 / math.pi


def inside(number: int) -> tuple[Tensor, Tensor]:
    """Times from 0 to 1 and places from -1 to 1."""
    t, x = torch.rand(number, 1), torch.rand(number, 1) * 2 - 1
    return t.requires_grad_(), x.requires_grad_()


def at_the_edge(number: int) -> tuple[Tensor, Tensor]:
    """At the start u is -sin(pi x), at both walls it is 0: points there, and u."""
    x, t = torch.rand(number, 1) * 2 - 1, torch.rand(number, 1)
    start = torch.cat([torch.zeros_like(x), x], 1)
    walls = torch.cat([t, torch.where(torch.rand(number, 1) < 0.5, -1.0, 1.0)], 1)
    return torch.cat([start, walls]), torch.cat([-torch.sin(math.pi * x), torch.zeros_like(t)])


def build(compile):
    layers = [layer for _ in range(3) for layer in (nn.Linear(32, 32), nn.Tanh())]
    network = nn.Sequential(nn.Linear(2, 32), nn.Tanh(), *layers, nn.Linear(32, 1))
    optimizer = torch.optim.Adam(network.parameters(), lr=2e-3)

    @compile
    def loss_of(t: Tensor, x: Tensor, edge: Tensor, u_edge: Tensor) -> Tensor:
        u = network(torch.cat([t, x], 1))
        u_t, u_x = torch.autograd.grad(u.sum(), (t, x), create_graph=True)
        (u_xx,) = torch.autograd.grad(u_x.sum(), x, create_graph=True)
        residual = u_t + u * u_x - VISCOSITY * u_xx
        return residual.square().mean() + F.mse_loss(network(edge), u_edge)

    def step(number: int) -> Tensor:
        optimizer.zero_grad()
        loss = loss_of(*inside(256), *at_the_edge(64))
        loss.backward()
        optimizer.step()
        return loss

    return step, list(network.parameters())


if __name__ == "__main__":
    main(build, steps=300, short_steps=8)
