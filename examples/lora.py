"""Fine-tuning of a small Llama of transformers by LoRA: its weights are frozen, and low-rank corrections beside them learn.

The model's weights are random, so nothing is downloaded; it learns gradc's licence, byte by byte, under bf16 autocast. The
forward of transformers breaks the graph twice (GRADC_LOGS=fallbacks names the lines); the bits are eager's nevertheless.
With transformers' Trainer instead of a loop: docs/recipes/transformers-trainer.md.

Run it: python examples/lora.py [--short] [--out FOLDER]. Without its columns of times, it printed

    run            final loss  bitwise eager  largest param diff
    -------------  ----------  -------------  ------------------
    eager            5.194723            yes                   0
    torch.compile    5.206238             no             8.8e-01
    gradc            5.194723            yes                   0
    gradc ran eagerly: {'Data-dependent branching': 528, 'Missing tp_iternext': 48}
"""

from __future__ import annotations

from pathlib import Path

import torch
from _side_by_side import main
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM

TEXT = torch.tensor(list((Path(__file__).parent.parent / "LICENSE").read_bytes()))
BATCH, LENGTH, RANK = 8, 64, 4


class LoRA(nn.Module):
    """A frozen Linear, and a correction of low rank that begins as zero."""

    def __init__(self, frozen: nn.Linear) -> None:
        super().__init__()
        self.frozen = frozen
        self.down, self.up = nn.Linear(frozen.in_features, RANK, bias=False), nn.Linear(RANK, frozen.out_features, bias=False)
        self.dropout = nn.Dropout(0.05)
        nn.init.zeros_(self.up.weight)

    def forward(self, x: Tensor) -> Tensor:
        return self.frozen(x) + 2 * self.up(self.down(self.dropout(x)))


def llama() -> LlamaForCausalLM:
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=256,
            hidden_size=64,
            intermediate_size=128,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
        )
    )
    model.requires_grad_(False)
    for layer in model.model.layers:
        layer.self_attn.q_proj, layer.self_attn.v_proj = LoRA(layer.self_attn.q_proj), LoRA(layer.self_attn.v_proj)
        layer.mlp.down_proj = LoRA(layer.mlp.down_proj)
    return model.train()


def build(compile):
    model = llama()
    learning = [parameter for parameter in model.parameters() if parameter.requires_grad]
    compiled, optimizer = compile(model), torch.optim.AdamW(learning, lr=1e-2)

    def step(number: int) -> Tensor:
        text = TEXT[torch.randint(len(TEXT) - LENGTH, (BATCH, 1)) + torch.arange(LENGTH)]
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = compiled(input_ids=text, labels=text, use_cache=False).loss
        loss.backward()
        nn.utils.clip_grad_norm_(learning, 1.0)
        optimizer.step()
        return loss

    return step, learning


if __name__ == "__main__":
    main(build, steps=60, short_steps=4)
