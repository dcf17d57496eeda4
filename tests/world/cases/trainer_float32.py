"""transformers Trainer: Llama, padded batches."""

from tests.world.cases._trainer import by_trainer, llama
from tests.world.harness.training import Training, Way

LIBRARIES = ("transformers", "accelerate")


def make(way: Way) -> Training:
    return by_trainer(way, llama())
