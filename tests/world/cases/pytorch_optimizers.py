"""pytorch-optimizer: Lion, AdaBelief, SOAP and Adan, a layer each."""

import itertools

import pytorch_optimizer
import torch
from torch import nn

from tests.world.harness.training import Training, Way

LIBRARIES = ("pytorch-optimizer",)


def make(way: Way) -> Training:
    sizes = ((6, 12), (12, 12), (12, 12), (12, 3))
    model = nn.Sequential(*(layer for size in sizes for layer in (nn.Linear(*size), nn.SiLU())))
    kinds = (pytorch_optimizer.Lion, pytorch_optimizer.AdaBelief, pytorch_optimizer.SOAP, pytorch_optimizer.Adan)
    optimizers = [kind(layer.parameters(), lr=1e-3) for kind, layer in zip(kinds, model[::2])]
    compiled = way.model(model)

    def step(x, y):
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss = nn.functional.mse_loss(compiled(x), y)
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
        return loss.detach()

    step, feed = way.step(step), itertools.cycle([(torch.randn(5, 6), torch.randn(5, 3)) for _ in range(3)])
    return Training(lambda: step(*next(feed)), (model, *optimizers))
