"""A training step of the GPT of gpt.py, to look at; a smaller batch and a whole one take turns.

    gradc report examples/gpt_step.py:step --output gpt.html
"""

import itertools

import torch
from gpt import BATCH, GPT, LENGTH, TEXT

torch.manual_seed(0)
letters = sorted(set(TEXT))
encoded = torch.tensor([letters.index(letter) for letter in TEXT])
model = GPT(len(letters))
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
sizes = itertools.cycle([BATCH - 6, BATCH])


def step() -> torch.Tensor:
    starts = torch.randint(len(encoded) - LENGTH, (next(sizes), 1))
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = model(encoded[starts + torch.arange(LENGTH + 1)])
    loss.backward()
    optimizer.step()
    return loss
