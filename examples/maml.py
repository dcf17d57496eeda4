"""Meta-learning by MAML: the loss after inner gradient steps, so backward runs through the inner steps' own backwards.

The inner steps are ordinary calls of torch.autograd.grad, inside the compiled function.

Run it: python examples/maml.py [--short] [--out FOLDER]. Without its columns of times, it printed

    run            final loss  bitwise eager  largest param diff
    -------------  ----------  -------------  ------------------
    eager            3.172148            yes                   0
    torch.compile           -         raises                   -
    gradc            3.172148            yes                   0
    torch.compile: RuntimeError: torch.compile with aot_autograd does not currently support double backward
    gradc ran eagerly: nothing
"""

from __future__ import annotations

import math

import torch
from _side_by_side import main
from torch import Tensor
from torch.nn import functional as F

TASKS, SHOTS, INNER_STEPS, INNER_RATE = 8, 10, 3, 0.02


def sines() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """A few tasks: sines of random height and phase, at points to learn from and at others to be judged by."""
    height, phase = torch.rand(TASKS, 1, 1) * 4.9 + 0.1, torch.rand(TASKS, 1, 1) * math.pi
    x = torch.rand(TASKS, 2 * SHOTS, 1) * 10 - 5
    y = height * torch.sin(x + phase)
    return x[:, :SHOTS], y[:, :SHOTS], x[:, SHOTS:], y[:, SHOTS:]


def network(weights: list[Tensor], x: Tensor) -> Tensor:
    w1, b1, w2, b2, w3, b3 = weights
    return F.linear(F.linear(F.linear(x, w1, b1).tanh(), w2, b2).tanh(), w3, b3)


def build(compile):
    shapes = [(40, 1), (40,), (40, 40), (40,), (1, 40), (1,)]
    weights = [(torch.randn(shape) / math.sqrt(shape[-1])).requires_grad_() for shape in shapes]
    optimizer = torch.optim.Adam(weights, lr=1e-3)

    @compile
    def loss_after_adapting(x: Tensor, y: Tensor, x_new: Tensor, y_new: Tensor) -> Tensor:
        adapted = weights
        for _ in range(INNER_STEPS):
            inner_loss = F.mse_loss(network(adapted, x), y)
            grads = torch.autograd.grad(inner_loss, adapted, create_graph=True)
            adapted = [weight - INNER_RATE * grad for weight, grad in zip(adapted, grads)]
        return F.mse_loss(network(adapted, x_new), y_new)

    def step(number: int) -> Tensor:
        optimizer.zero_grad()
        losses = [loss_after_adapting(*task) for task in zip(*sines())]
        loss = torch.stack(losses).mean()
        loss.backward()
        optimizer.step()
        return loss

    return step, weights


if __name__ == "__main__":
    main(build, steps=100, short_steps=5)
