"""schnetpack: PaiNN, energies and forces."""

from tests.world.cases._schnetpack import schnetpack, train
from tests.world.harness.training import Training, Way

LIBRARIES = ("schnetpack",)


def make(way: Way) -> Training:
    return train(way, schnetpack.representation.PaiNN)
