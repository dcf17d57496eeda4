"""The models that steps are timed on. Each builds a step: forward, backward, gradients cleared first.

    MODELS: {name: compile function -> step}

What is compiled is what a user would compile: the module, or the function that computes the loss.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

Compile = Callable[[Any], Any]
Step = Callable[[], Tensor]


def _step(parameters: Any, loss: Callable[[], Tensor]) -> Step:
    chosen = list(parameters)

    def step() -> Tensor:
        for parameter in chosen:
            parameter.grad = None
        value = loss()
        value.backward()
        return value.detach()

    return step


class Sequential(nn.Sequential):
    """With code of its own: of torch's, a contender would run what was compiled for the one before (see ``common.fresh``)."""

    def forward(self, x: Tensor) -> Tensor:
        for layer in self:
            x = layer(x)
        return x


def mlp64(compile: Compile) -> Step:
    """64 layers of Linear(32, 32) and tanh, batch 8: nothing but overhead."""
    layers = [layer for _ in range(64) for layer in (nn.Linear(32, 32), nn.Tanh())]
    return _forward_backward(Sequential(*layers), torch.randn(8, 32), compile)


def linear_tanh(compile: Compile) -> Step:
    """One Linear(32, 32) and tanh, batch 8: the cost of a call."""
    return _forward_backward(Sequential(nn.Linear(32, 32), nn.Tanh()), torch.randn(8, 32), compile)


def _forward_backward(model: nn.Module, x: Tensor, compile: Compile) -> Step:
    run = compile(model)
    return _step(model.parameters(), lambda: run(x).sum())


class ActorCritic(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh())
        self.policy, self.value = nn.Linear(64, 4), nn.Linear(64, 1)

    def forward(self, state: Tensor) -> tuple[Tensor, Tensor]:
        features = self.body(state)
        return self.policy(features), self.value(features).squeeze(-1)


def ppo(compile: Compile) -> Step:
    """The clipped objective of proximal policy optimization, minibatch 64."""
    model = ActorCritic()
    states, actions = torch.randn(64, 8), torch.randint(4, (64,))
    advantages, returns, old = torch.randn(64), torch.randn(64), -torch.rand(64)

    def loss(states: Tensor) -> Tensor:
        logits, values = model(states)
        logs = F.log_softmax(logits, -1)
        ratio = (logs.gather(1, actions[:, None]).squeeze(1) - old).exp()
        clipped = torch.min(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages).mean()
        entropy = -(logs.exp() * logs).sum(-1).mean()
        return -clipped + 0.5 * F.mse_loss(values, returns) - 0.01 * entropy

    run = compile(loss)
    return _step(model.parameters(), lambda: run(states))


def lstm(compile: Compile) -> Step:
    """An LSTMCell of width 64 unrolled over 32 steps, batch 16."""
    cell = nn.LSTMCell(32, 64)
    inputs = torch.randn(32, 16, 32)

    def loss(inputs: Tensor) -> Tensor:
        hidden = memory = inputs.new_zeros(16, 64)
        for x in inputs.unbind(0):
            hidden, memory = cell(x, (hidden, memory))
        return hidden.square().mean()

    run = compile(loss)
    return _step(cell.parameters(), lambda: run(inputs))


class Block(nn.Module):
    def __init__(self, width: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.project = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.expand, self.contract = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(batch, length, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.project(attended.transpose(1, 2).reshape(batch, length, width))
        return x + self.contract(F.gelu(self.expand(self.norm2(x))))


class GPT(nn.Module):
    """A decoder with tied embeddings that returns the next-token loss."""

    def __init__(self, width: int = 128, depth: int = 4, num_heads: int = 4, vocabulary: int = 256) -> None:
        super().__init__()
        self.embed, self.position = nn.Embedding(vocabulary, width), nn.Parameter(torch.randn(64, width) * 0.02)
        self.blocks = nn.Sequential(*(Block(width, num_heads) for _ in range(depth)))
        self.norm = nn.LayerNorm(width)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.blocks(self.embed(tokens) + self.position[: tokens.shape[1]])
        logits = F.linear(self.norm(x), self.embed.weight)
        return F.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())


def gpt(compile: Compile) -> Step:
    """4 layers of width 128, batch 4 of 64 tokens, float32."""
    model = GPT()
    tokens, run = torch.randint(256, (4, 64)), compile(model)
    return _step(model.parameters(), lambda: run(tokens))


def gpt_bf16(compile: Compile) -> Step:
    """The same under bf16 autocast, backward outside of it."""
    model = GPT()
    tokens, run = torch.randint(256, (4, 64)), compile(model)

    def loss() -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return run(tokens)

    return _step(model.parameters(), loss)


def cnn(compile: Compile) -> Step:
    """Three convolutions with batch norm on 16 images of 3 x 32 x 32."""
    layers: list[nn.Module] = []
    for channels_in, channels_out in ((3, 16), (16, 32), (32, 64)):
        layers += [nn.Conv2d(channels_in, channels_out, 3, 2, 1), nn.BatchNorm2d(channels_out), nn.ReLU()]
    model = Sequential(*layers, nn.Flatten(), nn.Linear(64 * 16, 10))
    images, labels, run = torch.randn(16, 3, 32, 32), torch.randint(10, (16,)), compile(model)
    return _step(model.parameters(), lambda: F.cross_entropy(run(images), labels))


class ForceField(nn.Module):
    """Message passing over fixed edges: an energy from positions."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.filter = nn.Sequential(nn.Linear(8, width), nn.SiLU(), nn.Linear(width, width))
        self.update = nn.Sequential(nn.Linear(width, width), nn.SiLU(), nn.Linear(width, width))
        self.readout = nn.Sequential(nn.Linear(width, width), nn.SiLU(), nn.Linear(width, 1))
        self.species = nn.Parameter(torch.randn(1, width))

    def forward(self, positions: Tensor, source: Tensor, target: Tensor) -> Tensor:
        distances = (positions[source] - positions[target]).square().sum(-1).add(1e-6).sqrt()
        radial = torch.exp(-(distances[:, None] - torch.linspace(0, 3, 8)).square())
        features = self.species.expand(len(positions), -1)
        for _ in range(2):
            messages = features[source] * self.filter(radial)
            features = features + self.update(torch.zeros_like(features).index_add(0, target, messages))
        return self.readout(features).sum()


def force_field(compile: Compile) -> Step:
    """Energy and forces of 32 atoms: the loss differentiates a gradient."""
    model = ForceField()
    positions = torch.randn(32, 3)
    source, target = (~torch.eye(32, dtype=torch.bool)).nonzero().unbind(1)
    energy_label, force_label = torch.randn(()), torch.randn(32, 3)

    def loss(positions: Tensor) -> Tensor:
        energy = model(positions, source, target)
        (gradient,) = torch.autograd.grad(energy, positions, create_graph=True)
        return F.mse_loss(energy, energy_label) + F.mse_loss(-gradient, force_label)

    run = compile(loss)
    return _step(model.parameters(), lambda: run(positions.clone().requires_grad_()))


def burgers(compile: Compile) -> Step:
    """A physics-informed network for Burgers' equation at 256 points: second derivatives inside the loss."""
    model = nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 1))
    t, x = torch.rand(256, 1), torch.rand(256, 1) * 2 - 1

    def loss(t: Tensor, x: Tensor) -> Tensor:
        u = model(torch.cat([t, x], 1))
        u_t, u_x = torch.autograd.grad(u.sum(), (t, x), create_graph=True)
        (u_xx,) = torch.autograd.grad(u_x.sum(), x, create_graph=True)
        return (u_t + u * u_x - 0.01 / torch.pi * u_xx).square().mean()

    run = compile(loss)
    return _step(model.parameters(), lambda: run(t.clone().requires_grad_(), x.clone().requires_grad_()))


MODELS: dict[str, Callable[[Compile], Step]] = {
    "64-layer MLP": mlp64,
    "Linear+Tanh": linear_tanh,
    "PPO update": ppo,
    "LSTMCell x 32": lstm,
    "GPT float32": gpt,
    "GPT bf16": gpt_bf16,
    "CNN": cnn,
    "force field": force_field,
    "Burgers": burgers,
}
