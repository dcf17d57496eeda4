"""opacus: differentially private SGD, per-sample gradients by torch's expanded weights."""

from tests.world.cases._opacus import train
from tests.world.harness.training import Training, Way

LIBRARIES = ("opacus",)


def make(way: Way) -> Training:
    return train(way, "ew")
