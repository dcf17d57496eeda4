"""The models that steps are timed on. Each builds a step: forward, backward, gradients cleared first.

    MODELS: {name: compile function -> step}        SMALL: those whose step takes milliseconds; MIDDLING: the others
    LARGE: {name: compile function -> step}         those for a GPU alone

What is compiled is what a user would compile: the module, or the function that computes the loss. Built inside of
``with torch.device("cuda")``, a model trains there.
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
    def __init__(self, width: int, num_heads: int, is_causal: bool = True) -> None:
        super().__init__()
        self.num_heads, self.is_causal = num_heads, is_causal
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.project = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.expand, self.contract = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(batch, length, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=self.is_causal)
        x = x + self.project(attended.transpose(1, 2).reshape(batch, length, width))
        return x + self.contract(F.gelu(self.expand(self.norm2(x))))


class GPT(nn.Module):
    """A decoder with tied embeddings that returns the next-token loss."""

    def __init__(
        self, width: int = 128, depth: int = 4, num_heads: int = 4, vocabulary: int = 256, most_tokens: int = 64
    ) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        nn.init.normal_(self.embed.weight, std=0.02)  # torch's 1 has softmax make denormals, which are slow on many CPUs
        self.position = nn.Parameter(torch.randn(most_tokens, width) * 0.02)
        self.blocks = nn.Sequential(*(Block(width, num_heads) for _ in range(depth)))
        self.norm = nn.LayerNorm(width)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.blocks(self.embed(tokens) + self.position[: tokens.shape[1]])
        logits = F.linear(self.norm(x), self.embed.weight)
        return F.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())


def gpt(compile: Compile) -> Step:
    """4 layers of width 128, batch 4 of 64 tokens, float32."""
    return _train_gpt(GPT(), torch.randint(256, (4, 64)), compile)


def gpt_bf16(compile: Compile) -> Step:
    """The same under bf16 autocast, backward outside of it."""
    return _train_gpt_in_bf16(GPT(), torch.randint(256, (4, 64)), compile)


def _train_gpt(model: nn.Module, tokens: Tensor, compile: Compile) -> Step:
    run = compile(model)
    return _step(model.parameters(), lambda: run(tokens))


def _train_gpt_in_bf16(model: nn.Module, tokens: Tensor, compile: Compile) -> Step:
    run = compile(model)
    return _step(model.parameters(), _in_bf16(tokens.device, lambda: run(tokens)))


def _in_bf16(device: torch.device, loss: Callable[[], Tensor]) -> Callable[[], Tensor]:
    def under_autocast() -> Tensor:
        with torch.autocast(device.type, dtype=torch.bfloat16):
            return loss()

    return under_autocast


def middling_gpt(compile: Compile) -> Step:
    """6 layers of width 384, 6 heads, vocabulary 8,192, batch 4 of 256 tokens, float32."""
    return _train_gpt(_middling_gpt(), torch.randint(8192, (4, 256)), compile)


def middling_gpt_bf16(compile: Compile) -> Step:
    """The same under bf16 autocast, backward outside of it."""
    return _train_gpt_in_bf16(_middling_gpt(), torch.randint(8192, (4, 256)), compile)


def _middling_gpt() -> GPT:
    return GPT(width=384, depth=6, num_heads=6, vocabulary=8192, most_tokens=256)


def cnn(compile: Compile) -> Step:
    """Three convolutions with batch norm on 16 images of 3 x 32 x 32."""
    layers: list[nn.Module] = []
    for channels_in, channels_out in ((3, 16), (16, 32), (32, 64)):
        layers += [nn.Conv2d(channels_in, channels_out, 3, 2, 1), nn.BatchNorm2d(channels_out), nn.ReLU()]
    model = Sequential(*layers, nn.Flatten(), nn.Linear(64 * 16, 10))
    return _classify(model, torch.randn(16, 3, 32, 32), 10, compile)


class ViT(nn.Module):
    """Of size S/16: patches of 16 x 16, 12 layers of width 384, 6 heads, 1,000 classes."""

    def __init__(self, size: int = 224, width: int = 384, depth: int = 12, num_heads: int = 6) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 16, 16)
        self.first = nn.Parameter(torch.zeros(1, 1, width))
        self.position = nn.Parameter(torch.randn(1, (size // 16) ** 2 + 1, width) * 0.02)
        self.blocks = nn.Sequential(*(Block(width, num_heads, is_causal=False) for _ in range(depth)))
        self.norm, self.classes = nn.LayerNorm(width), nn.Linear(width, 1000)

    def forward(self, images: Tensor) -> Tensor:
        patches = self.patches(images).flatten(2).transpose(1, 2)
        x = torch.cat([self.first.expand(len(images), -1, -1), patches], 1) + self.position
        return self.classes(self.norm(self.blocks(x))[:, 0])


def vit(compile: Compile) -> Step:
    """ViT-S/16 on 4 images of 3 x 224 x 224."""
    return _classify(ViT(), torch.randn(4, 3, 224, 224), 1000, compile)


class Bottleneck(nn.Module):
    def __init__(self, channels_in: int, channels: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(channels_in, channels, 1, bias=False), nn.BatchNorm2d(channels)
        self.conv2, self.norm2 = nn.Conv2d(channels, channels, 3, stride, 1, bias=False), nn.BatchNorm2d(channels)
        self.conv3, self.norm3 = nn.Conv2d(channels, 4 * channels, 1, bias=False), nn.BatchNorm2d(4 * channels)
        self.around: nn.Module = nn.Identity()
        if stride != 1 or channels_in != 4 * channels:
            shorter = nn.Conv2d(channels_in, 4 * channels, 1, stride, bias=False)
            self.around = nn.Sequential(shorter, nn.BatchNorm2d(4 * channels))

    def forward(self, x: Tensor) -> Tensor:
        inner = F.relu(self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x))))))
        return F.relu(self.norm3(self.conv3(inner)) + self.around(x))


class ResNet50(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.start = nn.Sequential(nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1))
        blocks, channels_in = list[nn.Module](), 64
        for number, (channels, count) in enumerate(((64, 3), (128, 4), (256, 6), (512, 3))):
            for index in range(count):
                blocks.append(Bottleneck(channels_in, channels, 2 if number and not index else 1))
                channels_in = 4 * channels
        self.blocks, self.classes = nn.Sequential(*blocks), nn.Linear(2048, 1000)

    def forward(self, images: Tensor) -> Tensor:
        return self.classes(self.blocks(self.start(images)).mean((2, 3)))


def resnet50(compile: Compile) -> Step:
    """ResNet-50 on 4 images of 3 x 96 x 96."""
    return _classify(ResNet50(), torch.randn(4, 3, 96, 96), 1000, compile)


def _classify(model: nn.Module, images: Tensor, num_classes: int, compile: Compile) -> Step:
    return _step(model.parameters(), _loss_of_classes(model, images, num_classes, compile))


def _loss_of_classes(model: nn.Module, images: Tensor, num_classes: int, compile: Compile) -> Callable[[], Tensor]:
    labels, run = torch.randint(num_classes, (len(images),)), compile(model)
    return lambda: F.cross_entropy(run(images), labels)


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
        radial = torch.exp(-(distances[:, None] - torch.linspace(0, 3, 8, device=positions.device)).square())
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


def gpt2(compile: Compile, batch: int = 8, length: int = 1024) -> Step:
    """GPT-2 of 124M parameters, under bf16 autocast."""
    model = GPT(width=768, depth=12, num_heads=12, vocabulary=50257, most_tokens=1024)
    nn.init.normal_(model.embed.weight, std=0.02)
    return _train_gpt_in_bf16(model, torch.randint(50257, (batch, length)), compile)


def short_gpt2(compile: Compile) -> Step:
    """The same on one text of 256 tokens."""
    return gpt2(compile, 1, 256)


def large_vit(compile: Compile) -> Step:
    """ViT-B/16 on 64 images of 3 x 224 x 224, under bf16 autocast."""
    return _classify_in_bf16(ViT(width=768, num_heads=12), 64, compile)


def large_resnet50(compile: Compile) -> Step:
    """ResNet-50 on 32 images of 3 x 224 x 224, under bf16 autocast."""
    return _classify_in_bf16(ResNet50(), 32, compile)


def _classify_in_bf16(model: nn.Module, batch: int, compile: Compile) -> Step:
    images = torch.randn(batch, 3, 224, 224)
    return _step(model.parameters(), _in_bf16(images.device, _loss_of_classes(model, images, 1000, compile)))


SMALL: dict[str, Callable[[Compile], Step]] = {
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
MIDDLING: dict[str, Callable[[Compile], Step]] = {
    "GPT-384 float32": middling_gpt,
    "GPT-384 bf16": middling_gpt_bf16,
    "ViT-S/16": vit,
    "ResNet-50": resnet50,
}
LARGE: dict[str, Callable[[Compile], Step]] = {  # for a GPU: no CPU takes such steps often enough to time them
    "GPT-2 bf16, 1 x 256": short_gpt2,
    "GPT-2 bf16, 8 x 1024": gpt2,
    "ViT-B/16 bf16": large_vit,
    "ResNet-50 bf16": large_resnet50,
}
MODELS = SMALL | MIDDLING
ON_DEVICE = [name for name in (*SMALL, *LARGE) if name != "Linear+Tanh"]  # what is timed there, unless others are asked for
