"""PyTorch Geometric: SchNet, energies and forces."""

import torch
from torch_geometric.nn.models import SchNet

from tests.world.cases._molecules import CUTOFF, energies_and_forces, neighbours, pairs_of_molecules
from tests.world.harness.training import Training, Way, loop

LIBRARIES = ("torch_geometric",)


def interaction_graph(positions, molecule):
    first, second = edges = neighbours(positions, molecule)
    return edges, (positions[first] - positions[second]).norm(dim=-1)


def make(way: Way) -> Training:
    sizes = {"hidden_channels": 16, "num_filters": 16, "num_interactions": 2, "num_gaussians": 10}
    model = SchNet(**sizes, cutoff=CUTOFF, interaction_graph=interaction_graph)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    return loop(way, model, energies_and_forces, pairs_of_molecules(), optimizer)
