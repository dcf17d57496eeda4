"""Training of schnetpack's models, energies and forces; the first derivative is taken inside of the model.

schnetpack 2.1 imports a name that torch's data loader no longer has: it is put back, for annotations.
"""

import typing

import torch
from torch.nn.functional import mse_loss
from torch.utils.data import dataloader

from tests.world.cases._molecules import CUTOFF, SIZES, neighbours
from tests.world.harness.training import Training, Way, loop

if not hasattr(dataloader, "T_co"):
    dataloader.T_co = typing.TypeVar("T_co", covariant=True)

import schnetpack
import schnetpack.atomistic
import schnetpack.model


def molecule(atoms: int):
    positions = 1.5 * torch.randn(atoms, 3)
    to, of = neighbours(positions)
    inputs = {
        "_n_atoms": torch.tensor([atoms]),
        "_atomic_numbers": torch.randint(1, 9, (atoms,)),
        "_positions": positions,
        "_idx_i": to.contiguous(),
        "_idx_j": of.contiguous(),
        "_idx_m": torch.zeros(atoms, dtype=torch.long),
        "_offsets": torch.zeros(len(to), 3),
        "_cell": torch.zeros(1, 3, 3),
        "_pbc": torch.zeros(3, dtype=torch.bool),
    }
    return inputs, torch.randn(1), torch.randn(atoms, 3)


def loss(model, inputs, energy, forces):
    found = model({name: value.clone() for name, value in inputs.items()})
    return mse_loss(found["energy"], energy) + mse_loss(found["forces"], forces)


def train(way: Way, representation: type[torch.nn.Module]) -> Training:
    radial = schnetpack.nn.GaussianRBF(n_rbf=8, cutoff=CUTOFF)
    cutoff = schnetpack.nn.CosineCutoff(CUTOFF)
    model = schnetpack.model.NeuralNetworkPotential(
        representation=representation(n_atom_basis=16, n_interactions=2, radial_basis=radial, cutoff_fn=cutoff),
        input_modules=[schnetpack.atomistic.PairwiseDistances()],
        output_modules=[
            schnetpack.atomistic.Atomwise(n_in=16, output_key="energy"),
            schnetpack.atomistic.Forces(energy_key="energy", force_key="forces"),
        ],
    )
    return loop(way, model, loss, [molecule(atoms) for atoms in SIZES])
