"""Proximal policy optimization of a pole balanced on a cart: 16 carts run, then the policy learns from what they did.

The cart and its pole are a few lines of torch here (the equations of Barto, Sutton and Anderson, 1983): no package is needed.

Run it: python examples/ppo.py [--short] [--out FOLDER]. Without its columns of times, it printed

    run            final balance  bitwise eager  largest param diff
    -------------  -------------  -------------  ------------------
    eager             341.333344            yes                   0
    torch.compile     256.000000             no             1.9e-01
    gradc             341.333344            yes                   0
    gradc ran eagerly: {'slower than eager': 2522}

Balance is the number of steps to a fall. What gradc found slower than eager is the policy of 16 carts, without gradients.
"""

from __future__ import annotations

import math

import torch
from _side_by_side import main
from torch import Tensor, nn
from torch.distributions import Categorical
from torch.nn import functional as F

CARTS, LENGTH, EPOCHS, MINIBATCH = 16, 64, 4, 256
DISCOUNT, DECAY, CLIP = 0.99, 0.95, 0.2


def push(state: Tensor, right: Tensor) -> Tensor:
    """10 N left or right, for 1/50 s. state: place and speed of the cart, angle of the pole and its speed."""
    _, speed, angle, turning = state.unbind(1)
    sine, cosine = angle.sin(), angle.cos()
    force = (20.0 * right - 10.0 + 0.05 * turning.square() * sine) / 1.1
    spin = (9.8 * sine - cosine * force) / (0.5 * (4 / 3 - 0.1 * cosine.square() / 1.1))
    change = torch.stack([speed, force - 0.05 * spin * cosine / 1.1, turning, spin], 1)
    return state + 0.02 * change


def has_fallen(state: Tensor) -> Tensor:
    return (state[:, 0].abs() > 2.4) | (state[:, 2].abs() > math.radians(12))


class ActorCritic(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.actor = nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 2))
        self.critic = nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1))

    def forward(self, state: Tensor) -> tuple[Tensor, Tensor]:
        return self.actor(state), self.critic(state).squeeze(-1)


def advantages_of(values: Tensor, fallen: Tensor) -> Tensor:
    """Generalized advantage estimation, from the end backwards. Every step before the fall is worth 1."""
    advantage, advantages = torch.zeros(CARTS), []
    for t in reversed(range(LENGTH)):
        goes_on = 1.0 - fallen[t]
        surprise = 1.0 + DISCOUNT * goes_on * values[t + 1] - values[t]
        advantage = surprise + DISCOUNT * DECAY * goes_on * advantage
        advantages.append(advantage)
    return torch.stack(advantages[::-1])


def build(compile):
    model = ActorCritic()
    policy = compile(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    state = torch.rand(CARTS, 4) * 0.1 - 0.05

    @compile
    def loss_of(states: Tensor, actions: Tensor, old_logs: Tensor, advantages: Tensor, returns: Tensor) -> Tensor:
        logits, values = model(states)
        logs = F.log_softmax(logits, 1)
        ratio = (logs.gather(1, actions[:, None]).squeeze(1) - old_logs).exp()
        advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
        gain = torch.min(ratio * advantages, ratio.clamp(1 - CLIP, 1 + CLIP) * advantages).mean()
        entropy = -(logs.exp() * logs).sum(1).mean()
        return 0.5 * F.mse_loss(values, returns) - gain - 0.01 * entropy

    @torch.no_grad()
    def play() -> tuple[list[Tensor], Tensor]:
        nonlocal state
        steps = []
        for _ in range(LENGTH):
            logits, values = policy(state)
            choice = Categorical(logits=logits)
            actions = choice.sample()
            after = push(state, actions)
            fallen = has_fallen(after)
            steps.append((state, actions, choice.log_prob(actions), values, fallen.float()))
            state = torch.where(fallen[:, None], torch.rand(CARTS, 4) * 0.1 - 0.05, after)
        states, actions, logs, values, fallen = map(torch.stack, zip(*steps))
        advantages = advantages_of(torch.cat([values, policy(state)[1][None]]), fallen)
        played = [states, actions, logs, advantages, advantages + values]
        return [tensor.flatten(0, 1) for tensor in played], CARTS * LENGTH / (fallen.sum() + 1)

    def step(number: int) -> Tensor:
        played, length = play()
        for _ in range(EPOCHS):
            for chosen in torch.randperm(CARTS * LENGTH).split(MINIBATCH):
                optimizer.zero_grad()
                loss_of(*(tensor[chosen] for tensor in played)).backward()
                nn.utils.clip_grad_norm_(model.parameters(), 0.5)
                optimizer.step()
        return length

    return step, list(model.parameters())


if __name__ == "__main__":
    main(build, steps=40, short_steps=2, shows="balance")
