"""opacus: differentially private SGD, per-sample gradients by hooks of modules."""

from tests.world.cases._opacus import train
from tests.world.harness.training import Training, Way

LIBRARIES = ("opacus",)


def make(way: Way) -> Training:
    return train(way, "hooks")
