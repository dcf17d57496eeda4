"""torchdiffeq: a solver with steps of its own choice."""

from torchdiffeq import odeint

from tests.world.cases._torchdiffeq import train
from tests.world.harness.training import Training, Way

LIBRARIES = ("torchdiffeq",)


def make(way: Way) -> Training:
    return train(way, odeint, method="dopri5", rtol=1e-3, atol=1e-4)
