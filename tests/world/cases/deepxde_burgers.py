"""DeepXDE: the residual of Burgers' equation, by its own derivatives of a network."""

import os

os.environ.setdefault("DDE_BACKEND", "pytorch")

import deepxde
import torch
from deepxde import gradients

from tests.world.harness.training import Training, Way, loop

LIBRARIES = ("DeepXDE",)


def residual(model, points):
    gradients.clear()
    x = points.clone().requires_grad_()
    u = model(x)
    u_x, u_t = (deepxde.grad.jacobian(u, x, i=0, j=dim) for dim in (0, 1))
    u_xx = deepxde.grad.hessian(u, x, i=0, j=0)
    return (u_t + u * u_x - 0.1 * u_xx).square().mean() + u[:10].square().mean()


def make(way: Way) -> Training:
    model = deepxde.nn.FNN([2, 20, 20, 20, 1], "tanh", "Glorot normal")
    return loop(way, model, residual, [(torch.rand(50, 2),), (torch.rand(50, 2),)])
