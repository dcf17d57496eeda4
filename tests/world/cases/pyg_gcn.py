"""PyTorch Geometric: graph convolutions with dropout."""

import torch
from torch import nn
from torch.nn.functional import cross_entropy, dropout
from torch_geometric.nn import GCNConv

from tests.world.harness.training import Training, Way, loop

LIBRARIES = ("torch_geometric",)


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = GCNConv(8, 16), GCNConv(16, 3)

    def forward(self, x, edges):
        return self.second(dropout(self.first(x, edges).relu(), 0.5, self.training), edges)


def make(way: Way) -> Training:
    batches = [(torch.randn(20, 8), torch.randint(0, 20, (2, 60)), torch.randint(0, 3, (20,))) for _ in range(2)]
    return loop(way, Network(), lambda model, x, edges, y: cross_entropy(model(x, edges), y), batches)
