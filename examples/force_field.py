"""A neural force field fitted to energies and forces: the forces are a gradient of the network, and the loss holds them.

The atoms that it imitates attract and repel each other by the Lennard-Jones potential, a formula that needs no further package.

Run it: python examples/force_field.py [--short] [--out FOLDER]. Without its columns of times, it printed

    run            final loss  bitwise eager  largest param diff
    -------------  ----------  -------------  ------------------
    eager            4.888275            yes                   0
    torch.compile           -         raises                   -
    gradc            4.888275            yes                   0
    torch.compile: RuntimeError: torch.compile with aot_autograd does not currently support double backward
    gradc ran eagerly: nothing
"""

from __future__ import annotations

import torch
from _side_by_side import main
from torch import Tensor, nn
from torch.nn import functional as F

ATOMS, WIDTH = 13, 32
FIRST, SECOND = torch.triu_indices(ATOMS, ATOMS, 1).unbind()


def distances(positions: Tensor) -> Tensor:
    return (positions[:, FIRST] - positions[:, SECOND]).norm(dim=-1)


def lennard_jones(positions: Tensor) -> tuple[Tensor, Tensor]:
    """The energies and forces of some clusters (number, atoms, 3), in the potential's own units."""
    positions = positions.clone().requires_grad_()
    sixth = distances(positions) ** -6
    energies = (4 * (sixth * sixth - sixth)).sum(1)
    (slopes,) = torch.autograd.grad(energies.sum(), positions)
    return energies.detach(), -slopes


def clusters(number: int) -> Tensor:
    """Atoms on a cubic lattice, each a little off its place."""
    side = torch.arange(3.0)
    lattice = torch.cartesian_prod(side, side, side)[:ATOMS] * 1.12
    return lattice + 0.05 * torch.randn(number, ATOMS, 3)


class ForceField(nn.Module):
    """Atoms gather what a network makes of their distances to the others, twice; each then says its part of the energy."""

    def __init__(self) -> None:
        super().__init__()
        self.filters = nn.ModuleList(nn.Sequential(nn.Linear(16, WIDTH), nn.SiLU(), nn.Linear(WIDTH, WIDTH)) for _ in range(2))
        self.updates = nn.ModuleList(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.SiLU()) for _ in range(2))
        self.atom, self.energy = nn.Parameter(torch.randn(WIDTH)), nn.Linear(WIDTH, 1)
        self.register_buffer("centres", torch.linspace(0.8, 3.5, 16))

    def forward(self, positions: Tensor) -> Tensor:
        radial = torch.exp(-20 * (distances(positions)[..., None] - self.centres).square())
        features = self.atom.expand(len(positions), ATOMS, WIDTH)
        for filter, update in zip(self.filters, self.updates):
            weights, gathered = filter(radial), torch.zeros_like(features)
            gathered = gathered.index_add(1, FIRST, features[:, SECOND] * weights)
            gathered = gathered.index_add(1, SECOND, features[:, FIRST] * weights)
            features = features + update(gathered)
        return self.energy(features).sum((1, 2))


def build(compile):
    model = ForceField()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)

    @compile
    def loss_of(positions: Tensor, energies: Tensor, forces: Tensor) -> Tensor:
        predicted = model(positions)
        (slopes,) = torch.autograd.grad(predicted.sum(), positions, create_graph=True)
        return F.mse_loss(predicted / ATOMS, energies / ATOMS) + F.mse_loss(-slopes, forces)

    def step(number: int) -> Tensor:
        positions = clusters(16)
        optimizer.zero_grad()
        loss = loss_of(positions.clone().requires_grad_(), *lennard_jones(positions))
        loss.backward()
        optimizer.step()
        return loss

    return step, list(model.parameters())


if __name__ == "__main__":
    main(build, steps=200, short_steps=6)
