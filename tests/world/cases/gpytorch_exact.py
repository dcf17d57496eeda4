"""GPyTorch: an exact Gaussian process by its marginal likelihood."""

import gpytorch
import torch

from tests.world.harness.training import Training, Way, loop

LIBRARIES = ("gpytorch",)


class Process(gpytorch.models.ExactGP):
    def __init__(self, x, y, likelihood):
        super().__init__(x, y, likelihood)
        self.mean_module = gpytorch.means.ConstantMean()
        self.covar_module = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel())

    def forward(self, x):
        return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))


def make(way: Way) -> Training:
    x = torch.linspace(0, 1, 40)
    y = torch.sin(6 * x) + 0.1 * torch.randn(40)
    likelihood = gpytorch.likelihoods.GaussianLikelihood()
    model = Process(x, y, likelihood).train()
    marginal = gpytorch.mlls.ExactMarginalLogLikelihood(likelihood.train(), model)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    return loop(way, model, lambda model, x, y: -marginal(model(x), y), [(x, y)], optimizer)
