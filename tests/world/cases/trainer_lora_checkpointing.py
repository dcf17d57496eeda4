"""transformers Trainer: Llama with LoRA (peft), gradient checkpointing and bf16."""

import peft

from tests.world.cases._trainer import by_trainer, llama
from tests.world.harness.training import Training, Way

LIBRARIES = ("transformers", "accelerate", "peft")


def make(way: Way) -> Training:
    config = peft.LoraConfig(r=4, lora_alpha=8, lora_dropout=0.1, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
    model = peft.get_peft_model(llama(), config)
    return by_trainer(way, model, bf16=True, gradient_checkpointing=True)
