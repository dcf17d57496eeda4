"""GPyTorch: a sparse variational Gaussian process with learned inducing points."""

import gpytorch
import torch

from tests.world.harness.training import Training, Way, loop

LIBRARIES = ("gpytorch",)


class Process(gpytorch.models.ApproximateGP):
    def __init__(self, inducing):
        distribution = gpytorch.variational.CholeskyVariationalDistribution(len(inducing))
        super().__init__(gpytorch.variational.VariationalStrategy(self, inducing, distribution, learn_inducing_locations=True))
        self.mean_module = gpytorch.means.ConstantMean()
        self.covar_module = gpytorch.kernels.ScaleKernel(gpytorch.kernels.MaternKernel())
        self.likelihood = gpytorch.likelihoods.GaussianLikelihood()

    def forward(self, x):
        return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))


def make(way: Way) -> Training:
    x = torch.rand(64, 2)
    y = torch.sin(6 * x[:, 0]) + 0.1 * torch.randn(64)
    model = Process(x[:10].clone()).train()
    bound = gpytorch.mlls.VariationalELBO(model.likelihood, model, len(x))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    return loop(way, model, lambda model, x, y: -bound(model(x), y), [(x[:32], y[:32]), (x[32:], y[32:])], optimizer)
