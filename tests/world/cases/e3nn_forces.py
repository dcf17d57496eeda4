"""e3nn: an equivariant message passing, energies and forces."""

import torch
from e3nn import o3
from e3nn.math import soft_one_hot_linspace
from e3nn.nn import FullyConnectedNet
from torch import nn

from tests.world.cases._molecules import CUTOFF, energies_and_forces, neighbours, pairs_of_molecules
from tests.world.harness.training import Training, Way, loop

LIBRARIES = ("e3nn",)


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.harmonics = o3.Irreps.spherical_harmonics(2)
        self.product = o3.FullyConnectedTensorProduct("4x0e", self.harmonics, "4x0e+2x1o", shared_weights=False)
        self.weights = FullyConnectedNet([8, 16, self.product.weight_numel], torch.nn.functional.silu)
        self.embedding, self.out = nn.Embedding(10, 4), o3.Linear("4x0e+2x1o", "1x0e")

    def forward(self, kinds, positions, molecule):
        to, of = neighbours(positions, molecule)
        vectors = positions[to] - positions[of]
        angles = o3.spherical_harmonics(self.harmonics, vectors, True, normalization="component")
        radial = soft_one_hot_linspace(vectors.norm(dim=1), 0.0, CUTOFF, 8, basis="smooth_finite", cutoff=True)
        messages = self.product(self.embedding(kinds)[to], angles, self.weights(radial))
        atoms = torch.zeros(len(kinds), messages.shape[1]).index_add(0, of, messages)
        return torch.zeros(int(molecule.max()) + 1, 1).index_add(0, molecule, self.out(atoms))


def make(way: Way) -> Training:
    return loop(way, Network(), energies_and_forces, pairs_of_molecules())
