"""A loop as accelerate's documentation has it."""

import itertools

import torch
from accelerate import Accelerator
from torch import nn

from tests.world.harness.training import Training, Way


def accelerated(way: Way, is_prepared_first: bool) -> Training:
    accelerator = Accelerator(mixed_precision="bf16", gradient_accumulation_steps=2, cpu=True)
    model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.LayerNorm(16), nn.Dropout(0.1), nn.Linear(16, 4))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, total_iters=20)
    data = [(torch.randn(8), torch.randint(4, ())) for _ in range(12)]
    loader = torch.utils.data.DataLoader(data, batch_size=3, shuffle=True)
    if is_prepared_first:
        prepared, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)
        prepared = way.model(prepared)
    else:
        prepared, optimizer, loader, scheduler = accelerator.prepare(way.model(model), optimizer, loader, scheduler)

    def step(x, y):
        with accelerator.accumulate(prepared):
            loss = nn.functional.cross_entropy(prepared(x), y)
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(prepared.parameters(), 1.0)
            kept = [p.grad.clone() for p in model.parameters()]
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
        return loss.detach(), kept

    step, feed = way.step(step), itertools.chain.from_iterable(itertools.repeat(loader))
    return Training(lambda: step(*next(feed)), (model, optimizer.optimizer))
