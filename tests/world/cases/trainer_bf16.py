"""transformers Trainer: Llama under bf16, padded batches, accumulated gradients."""

from tests.world.cases._trainer import by_trainer, llama
from tests.world.harness.training import Training, Way

LIBRARIES = ("transformers", "accelerate")


def make(way: Way) -> Training:
    return by_trainer(way, llama(), bf16=True, gradient_accumulation_steps=2)
