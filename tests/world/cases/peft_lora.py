"""peft: Llama with LoRA, a loop."""

import peft
import torch

from tests.world.cases._trainer import VOCABULARY, llama
from tests.world.harness.training import Training, Way, loop

LIBRARIES = ("transformers", "peft")


def make(way: Way) -> Training:
    config = peft.LoraConfig(r=4, lora_alpha=8, lora_dropout=0.1, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
    model = peft.get_peft_model(llama(), config).train()
    batches = [(torch.randint(3, VOCABULARY, (2, 12)),) for _ in range(3)]
    return loop(way, model, lambda model, ids: model(input_ids=ids, labels=ids).loss, batches)
