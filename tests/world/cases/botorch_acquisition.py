"""BoTorch: expected improvement of a batch of candidates, maximised."""

import torch
from botorch.acquisition import qExpectedImprovement
from botorch.models import SingleTaskGP
from botorch.sampling import SobolQMCNormalSampler
from torch import nn

from tests.world.harness.training import Training, Way, loop

LIBRARIES = ("botorch", "gpytorch")


class Candidates(nn.Module):
    def __init__(self, acquisition):
        super().__init__()
        self.x, self.acquisition = nn.Parameter(torch.rand(4, 2, 2, dtype=torch.double)), acquisition

    def forward(self):
        return self.acquisition(self.x)


def make(way: Way) -> Training:
    x = torch.rand(12, 2, dtype=torch.double)
    y = (3 * x.sum(1, keepdim=True)).sin()
    model = SingleTaskGP(x, y).eval()
    acquisition = qExpectedImprovement(model, best_f=y.max(), sampler=SobolQMCNormalSampler(torch.Size([16]), seed=1))
    candidates = Candidates(acquisition)
    optimizer = torch.optim.Adam([candidates.x], lr=0.01)
    return loop(way, candidates, lambda model: -model().sum(), [()], optimizer)
