"""Training of a neural differential equation with one of torchdiffeq's solvers."""

import torch
from torch import nn
from torch.nn.functional import l1_loss

from tests.world.harness.training import Training, Way, loop


class Derivative(nn.Module):
    def __init__(self):
        super().__init__()
        self.network = nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 2))

    def forward(self, t, y):
        return self.network(y**3)


class Solution(nn.Module):
    def __init__(self, solve, **options):
        super().__init__()
        self.derivative, self.solve, self.options = Derivative(), solve, options

    def forward(self, y, times):
        return self.solve(self.derivative, y, times, **self.options)


def train(way: Way, solve, **options) -> Training:
    batches = [(torch.randn(4, 2), torch.linspace(0, 1, 5), torch.randn(5, 4, 2)) for _ in range(2)]
    return loop(way, Solution(solve, **options), lambda model, y, times, wanted: l1_loss(model(y, times), wanted), batches)
