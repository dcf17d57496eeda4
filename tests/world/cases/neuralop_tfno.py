"""neuraloperator: a Fourier neural operator with factorised weights."""

import torch
from neuralop.models import TFNO
from torch.nn.functional import mse_loss

from tests.world.harness.training import Training, Way, loop

LIBRARIES = ("neuraloperator",)


def make(way: Way) -> Training:
    sizes = {"hidden_channels": 12, "in_channels": 1, "out_channels": 1, "n_layers": 2}
    model = TFNO(n_modes=(6, 6), **sizes, rank=0.5, factorization="tucker")
    batches = [(torch.randn(2, 1, 16, 16), torch.randn(2, 1, 16, 16)) for _ in range(2)]
    return loop(way, model, lambda model, x, y: mse_loss(model(x), y), batches)
