"""transformers: Llama with an attention mask of ones, under bf16 autocast."""

import torch

from tests.world.cases._trainer import VOCABULARY, llama
from tests.world.harness.training import Training, Way, loop

LIBRARIES = ("transformers",)


def make(way: Way) -> Training:
    model = llama().train()
    batches = [(torch.randint(3, VOCABULARY, (2, 12)),) for _ in range(3)]

    def loss(model, ids):
        return model(input_ids=ids, attention_mask=torch.ones_like(ids), labels=ids).loss

    return loop(way, model, loss, batches, context=lambda: torch.autocast("cpu", torch.bfloat16))
