"""A GPT that learns gradc's licence letter by letter, under bf16 autocast: forward inside, backward outside, as torch says.

torch.compile runs backward under forward's autocast, where eager and gradc run it under none; and Inductor rounds otherwise.

Run it: python examples/gpt.py [--short] [--out FOLDER]. Without its columns of times, it printed

    run            final loss  bitwise eager  largest param diff
    -------------  ----------  -------------  ------------------
    eager            2.364553            yes                   0
    torch.compile    2.364349             no             7.6e-02
    gradc            2.364553            yes                   0
    gradc ran eagerly: nothing
"""

from __future__ import annotations

from pathlib import Path

import torch
from _side_by_side import main
from torch import Tensor, nn
from torch.nn import functional as F

TEXT = (Path(__file__).parent.parent / "LICENSE").read_text()
WIDTH, HEADS, DEPTH, LENGTH, BATCH = 96, 4, 3, 64, 16


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.project = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.norm1(x)).unflatten(2, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.project(attended.transpose(1, 2).flatten(2))
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
    def __init__(self, num_letters: int) -> None:
        super().__init__()
        self.letters, self.places = nn.Embedding(num_letters, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks, self.norm = nn.Sequential(*(Block() for _ in range(DEPTH))), nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, num_letters, bias=False)

    def forward(self, text: Tensor) -> Tensor:
        """The loss of each letter, given those before it."""
        x = self.letters(text[:, :-1]) + self.places.weight
        logits = self.head(self.norm(self.blocks(x)))
        return F.cross_entropy(logits.flatten(0, 1), text[:, 1:].flatten())


def build(compile):
    letters = sorted(set(TEXT))
    encoded = torch.tensor([letters.index(letter) for letter in TEXT])
    model = GPT(len(letters))
    loss_of, optimizer = compile(model), torch.optim.AdamW(model.parameters(), lr=2e-3)

    def step(number: int) -> Tensor:
        starts = torch.randint(len(encoded) - LENGTH, (BATCH, 1))
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = loss_of(encoded[starts + torch.arange(LENGTH + 1)])
        loss.backward()
        optimizer.step()
        return loss

    return step, list(model.parameters())


if __name__ == "__main__":
    main(build, steps=60, short_steps=4)
