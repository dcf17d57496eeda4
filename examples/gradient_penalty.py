"""A Wasserstein GAN with gradient penalty: the critic's loss holds the norm of a gradient, so backward differentiates backward.

torch.compile refuses to differentiate its own backward; gradc's region has a derivative, and that one again.

Run it: python examples/gradient_penalty.py [--short] [--out FOLDER]. Without its columns of times, it printed

    run            final loss  bitwise eager  largest param diff
    -------------  ----------  -------------  ------------------
    eager            0.019026            yes                   0
    torch.compile           -         raises                   -
    gradc            0.019026            yes                   0
    torch.compile: RuntimeError: torch.compile with aot_autograd does not currently support double backward
    gradc ran eagerly: nothing
"""

from __future__ import annotations

import math

import torch
from _side_by_side import main
from torch import Tensor, nn

BATCH = 256


def network(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(inputs, 64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU(), nn.Linear(64, outputs))


def ring() -> Tensor:
    """Points around eight centres on a circle: what the generator is to imitate."""
    angle = torch.randint(8, (BATCH,)) * (math.pi / 4)
    return torch.stack([angle.cos(), angle.sin()], 1) + 0.05 * torch.randn(BATCH, 2)


def build(compile):
    critic, generator = network(2, 1), network(8, 2)
    critic_optimizer = torch.optim.Adam(critic.parameters(), lr=1e-3, betas=(0.5, 0.9))
    generator_optimizer = torch.optim.Adam(generator.parameters(), lr=1e-3, betas=(0.5, 0.9))

    @compile
    def critic_loss(real: Tensor, fake: Tensor, between: Tensor) -> Tensor:
        (slope,) = torch.autograd.grad(critic(between).sum(), between, create_graph=True)
        penalty = (slope.norm(dim=1) - 1).square().mean()
        return critic(fake).mean() - critic(real).mean() + 10 * penalty

    @compile
    def generator_loss(noise: Tensor) -> Tensor:
        return -critic(generator(noise)).mean()

    def step(number: int) -> Tensor:
        if number % 5 == 4:
            generator_optimizer.zero_grad()
            generator_loss(torch.randn(BATCH, 8)).backward()
            generator_optimizer.step()
        real, fake = ring(), generator(torch.randn(BATCH, 8)).detach()
        between = torch.lerp(fake, real, torch.rand(BATCH, 1)).requires_grad_()
        critic_optimizer.zero_grad()
        loss = critic_loss(real, fake, between)
        loss.backward()
        critic_optimizer.step()
        return loss

    return step, [*critic.parameters(), *generator.parameters()]


if __name__ == "__main__":
    main(build, steps=300, short_steps=12)
