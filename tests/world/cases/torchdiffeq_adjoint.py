"""torchdiffeq: gradients by the adjoint equation, solved backward in time."""

from torchdiffeq import odeint_adjoint

from tests.world.cases._torchdiffeq import train
from tests.world.harness.training import Training, Way

LIBRARIES = ("torchdiffeq",)


def make(way: Way) -> Training:
    return train(way, odeint_adjoint, method="rk4")
