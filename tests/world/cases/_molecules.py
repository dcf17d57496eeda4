"""Random molecules, whose neighbour lists have another length at each step, and the loss of energies and forces."""

import torch
from torch.nn.functional import mse_loss

CUTOFF = 3.0
SIZES = (12, 15, 11, 14)


def neighbours(positions, molecule=None):
    """Pairs of atoms of one molecule closer than CUTOFF: indices of both."""
    distances = torch.cdist(positions.detach(), positions.detach())
    near = (distances < CUTOFF) & ~torch.eye(len(positions), dtype=torch.bool)
    return (near if molecule is None else near & (molecule[:, None] == molecule)).nonzero().t()


def pairs_of_molecules():
    """Kinds and positions of the atoms of two molecules, which of them each belongs to, energies and forces to learn."""
    return [
        (
            torch.randint(1, 9, (atoms,)),
            1.5 * torch.randn(atoms, 3),
            torch.arange(atoms) * 2 // atoms,
            torch.randn(2, 1),
            torch.randn(atoms, 3),
        )
        for atoms in SIZES
    ]


def energies_and_forces(model, kinds, positions, molecule, energies, forces):
    positions = positions.clone().requires_grad_()
    found = model(kinds, positions, molecule)
    (gradient,) = torch.autograd.grad(found.sum(), positions, create_graph=True)
    return mse_loss(found, energies) + mse_loss(-gradient, forces)
