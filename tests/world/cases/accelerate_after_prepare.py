"""accelerate: the model compiled after prepare(), bf16, gradients accumulated and clipped."""

from tests.world.cases._accelerate import accelerated
from tests.world.harness.training import Training, Way

LIBRARIES = ("accelerate",)


def make(way: Way) -> Training:
    return accelerated(way, is_prepared_first=True)
