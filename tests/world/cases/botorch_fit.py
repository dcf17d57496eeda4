"""BoTorch: the hyperparameters of a Gaussian process in double precision."""

import torch
from botorch.models import SingleTaskGP
from gpytorch.mlls import ExactMarginalLogLikelihood

from tests.world.harness.training import Training, Way, loop

LIBRARIES = ("botorch", "gpytorch")


def make(way: Way) -> Training:
    x = torch.rand(12, 2, dtype=torch.double)
    model = SingleTaskGP(x, (3 * x.sum(1, keepdim=True)).sin())
    marginal = ExactMarginalLogLikelihood(model.likelihood, model).train()
    return loop(way, model, lambda compiled: -marginal(compiled(*model.train_inputs), model.train_targets), [()])
