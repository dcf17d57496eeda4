"""PyTorch Geometric: graph attention and pooling, over graphs of another size at each step."""

import torch
from torch import nn
from torch.nn.functional import cross_entropy, elu
from torch_geometric.nn import GATConv, global_mean_pool

from tests.world.harness.training import Training, Way, loop

LIBRARIES = ("torch_geometric",)


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = GATConv(8, 8, heads=2), GATConv(16, 3)

    def forward(self, x, edges, graph):
        return global_mean_pool(self.second(elu(self.first(x, edges)), edges), graph)


def graphs(nodes: int, edges: int):
    x, pairs = torch.randn(nodes, 8), torch.randint(0, nodes, (2, edges))
    return x, pairs, torch.arange(nodes) // 5, torch.randint(0, 3, (nodes // 5,))


def make(way: Way) -> Training:
    batches = [graphs(20, 60), graphs(25, 70), graphs(30, 91), graphs(35, 95)]
    return loop(way, Network(), lambda model, x, edges, graph, y: cross_entropy(model(x, edges, graph), y), batches)
