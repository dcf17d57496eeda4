"""Captum: integrated gradients and DeepLift of a model in training, beside its loss."""

import torch
from captum.attr import DeepLift, IntegratedGradients
from torch import nn
from torch.nn.functional import cross_entropy

from tests.world.harness.training import Training, Way, loop

LIBRARIES = ("captum",)


def loss(model, x, y):
    integrated = IntegratedGradients(model).attribute(x, target=y, n_steps=8)
    lifted = DeepLift(model).attribute(x, target=y)
    return cross_entropy(model(x), y) + integrated.abs().mean() + lifted.abs().mean().detach()


def make(way: Way) -> Training:
    model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3))
    return loop(way, model, loss, [(torch.randn(5, 6), torch.randint(0, 3, (5,))) for _ in range(2)])
