"""Training loops as people write them: six steps, each gradient and each weight bit for bit eager's, nothing run eagerly.

A loop is (a net, a batch for each step, their loss), and what else happens in a step. Batches change their sizes in some.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import clip_grad_norm_, parametrizations, rnn
from torch.utils.checkpoint import checkpoint

from tests.compilers import Compiler, find
from tests.oracle import check

NUM_STEPS = 6


def sgd(net: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(net.parameters(), lr=0.05)


def nothing(net: nn.Module, number: int) -> None:
    pass


@dataclasses.dataclass(frozen=True)
class Loop:
    """``before`` and ``after``: what happens to the net before the forward, and after the backward, of each step."""

    net: Callable[[], nn.Module]
    batch: Callable[[int], Any]
    loss: Callable[[nn.Module, Any], Tensor]
    optimizer: Callable[[nn.Module], torch.optim.Optimizer] = sgd
    before: Callable[[Any, int], object] = nothing
    after: Callable[[Any, int], object] = nothing

    def run(self, compile: Compiler, net: nn.Module, is_loss_compiled: bool) -> list[Any]:
        run, loss = (net, compile(self.loss)) if is_loss_compiled else (compile(net), self.loss)
        optimizer, seen = self.optimizer(net), []
        for number in range(NUM_STEPS):
            torch.manual_seed(number)
            self.before(net, number)
            optimizer.zero_grad()
            loss(run, self.batch(number)).backward()
            seen.append([None if p.grad is None else p.grad.clone() for p in net.parameters()])
            self.after(net, number)
            optimizer.step()
        return seen


def layers() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 4))


def rows(number: int) -> Tensor:
    return torch.randn(5, 8)


def some_rows(number: int) -> Tensor:
    return torch.randn(4 + number % 3, 8)


def words(*shape: int) -> Callable[[int], Tensor]:
    return lambda number: torch.randint(1, 20, shape)


def square(net: nn.Module, x: Tensor) -> Tensor:
    return net(x).square().mean()


def sine(net: nn.Module, x: Tensor) -> Tensor:
    return net(x).sin().sum()


def classes(net: nn.Module, x: Tensor) -> Tensor:
    return F.cross_entropy(net(x), torch.arange(len(x)) % 4, label_smoothing=0.1)


def freeze(net: nn.Sequential, number: int) -> None:
    net[0].requires_grad_(number % 2 == 0)


def step_in_backward(net: nn.Module, number: int) -> None:
    """Each weight has an optimizer of its own, run as soon as its gradient is there."""

    def watch(p: nn.Parameter) -> None:
        optimizer = torch.optim.SGD([p], lr=0.05, momentum=0.9)

        def hook(p: Tensor) -> None:
            optimizer.step()
            optimizer.zero_grad()

        p.register_post_accumulate_grad_hook(hook)

    if number == 0:
        for p in net.parameters():
            watch(p)


class LowRank(nn.Module):
    """A frozen layer and a trained correction."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8).requires_grad_(False)
        self.down, self.up = nn.Parameter(torch.randn(2, 8)), nn.Parameter(torch.randn(8, 2))

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) + x @ self.down.t() @ self.up.t() * 0.5


class Language(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(20, 8, padding_idx=0)
        self.lstm = nn.LSTM(8, 6, 2, batch_first=True, dropout=0.2, bidirectional=True)
        self.head = nn.Linear(12, 20)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.lstm(self.embedding(x))[0])


class Packed(Language):
    def forward(self, x: Tensor) -> Tensor:
        lengths = (x > 3).sum(1).clamp(min=1).sort(descending=True).values
        packed = rnn.pack_padded_sequence(self.embedding(x), lengths, batch_first=True)
        return self.head(rnn.pad_packed_sequence(self.lstm(packed)[0], batch_first=True)[0])


def next_word(net: nn.Module, x: Tensor) -> Tensor:
    return F.cross_entropy(net(x)[:, :-1].reshape(-1, 20), x[:, 1:].reshape(-1))


class Tied(nn.Module):
    """One weight embeds words and scores them."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(20, 8), nn.Linear(8, 20, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.embedding(x).tanh())


def same_word(net: nn.Module, x: Tensor) -> Tensor:
    return F.cross_entropy(net(x), x.roll(1))


class SparseBag(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.bag, self.head = nn.EmbeddingBag(20, 8, mode="sum", sparse=True), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.bag(x))


class Checkpointed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.3), nn.Tanh()) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False)
        return x


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.projection = nn.Linear(8, 24)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.projection(x).view(*x.shape[:2], 3, 2, 4).permute(2, 0, 3, 1, 4)
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=0.1)


class Unrolled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell, self.start = nn.GRUCell(8, 8), nn.Parameter(torch.zeros(8))

    def forward(self, x: Tensor) -> Tensor:
        hidden, all_hidden = self.start.expand(x.shape[0], 8), []
        for _ in range(4):
            hidden = self.cell(x, hidden)
            all_hidden.append(hidden)
        return torch.stack(all_hidden)


class Experts(nn.Module):
    """Each row goes to one expert: how many rows an expert gets depends on the data."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.experts = nn.Linear(8, 3), nn.ModuleList(nn.Linear(8, 8) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        weights = self.gate(x).softmax(-1)
        chosen, out = weights.argmax(-1), torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            mine = (chosen == number).nonzero()[:, 0]
            out = out.index_add(0, mine, expert(x[mine]) * weights[mine, number, None])
        return out


class Variational(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = nn.Linear(8, 6), nn.Linear(3, 8)

    def forward(self, x: Tensor) -> Tensor:
        mean, log_var = self.encoder(x).chunk(2, -1)
        decoded = self.decoder(mean + torch.randn_like(mean) * (0.5 * log_var).exp())
        divergence = (1 + log_var - mean.square() - log_var.exp()).sum(-1).mean()
        return F.binary_cross_entropy_with_logits(decoded, x.sigmoid()) - 0.5 * divergence


class UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.down = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 8, 3, 2, 1)
        self.up, self.last = nn.ConvTranspose2d(8, 4, 2, 2), nn.Conv2d(8, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        first = F.leaky_relu(self.first(x))
        return self.last(torch.cat([first, self.up(F.elu(self.down(first)))], 1))


def convolutions() -> nn.Module:
    first = (nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.SiLU())
    then = (nn.Conv2d(8, 8, 3, groups=8, stride=2), nn.GroupNorm(2, 8), nn.Hardswish())
    return nn.Sequential(*first, *then, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.2), nn.Linear(8, 5))


def under_autocast(net: nn.Module, x: Tensor) -> Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        return F.mse_loss(net(x).float(), x[:, :4])


def several_backwards(net: nn.Module, x: Tensor) -> Tensor:
    for number in range(2):
        (square(net, x + number) / 3).backward()
    return square(net, x) / 3


def policy(net: nn.Module, x: Tensor) -> Tensor:
    normal = torch.distributions.Normal(net(x), torch.ones(4))
    action = normal.rsample()
    return -(normal.log_prob(action.detach()) * action.sum(-1, keepdim=True)).mean() - 0.01 * normal.entropy().mean()


def gumbel(net: nn.Module, x: Tensor) -> Tensor:
    return (F.gumbel_softmax(net(x), hard=True) * torch.arange(4.0)).sum()


def ctc(net: nn.Module, x: Tensor) -> Tensor:
    targets, of_inputs, of_targets = torch.tensor([[1, 2, 3], [2, 2, 1]]), torch.tensor([7, 6]), torch.tensor([3, 2])
    return F.ctc_loss(net(x).log_softmax(-1), targets, of_inputs, of_targets)


LOOPS = {
    "AdamW, clipped gradients, odd batches": Loop(
        lambda: nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.LayerNorm(8), nn.Linear(8, 4)),
        some_rows,
        classes,
        lambda net: torch.optim.AdamW(net.parameters(), lr=1e-2),
        after=lambda net, number: clip_grad_norm_(net.parameters(), 0.5),
    ),
    "attention, odd lengths": Loop(Attention, lambda number: torch.randn(2, 5 + number % 3, 8), square),
    "bf16 autocast": Loop(layers, rows, under_autocast),
    "checkpoints": Loop(Checkpointed, rows, square),
    "convolutions": Loop(convolutions, lambda number: torch.randn(4, 3, 9, 9), classes),
    "CTC": Loop(lambda: nn.Linear(8, 6), lambda number: torch.randn(7, 2, 8), ctc),
    "experts": Loop(Experts, rows, square),
    "frozen every other step": Loop(layers, rows, sine, before=freeze),
    "gradients accumulated": Loop(layers, rows, several_backwards),
    "GRU unrolled, odd batches": Loop(Unrolled, some_rows, square),
    "Gumbel": Loop(layers, rows, gumbel),
    "language": Loop(Language, words(3, 5), next_word),
    "low-rank adapters": Loop(lambda: nn.Sequential(LowRank(), nn.ReLU(), LowRank()), rows, sine),
    "normalised weights": Loop(lambda: nn.Sequential(parametrizations.spectral_norm(nn.Linear(8, 8)), nn.GELU()), rows, square),
    "optimizers in backward": Loop(layers, rows, sine, before=step_in_backward),
    "packed sequences": Loop(Packed, words(3, 5), sine),
    "policy": Loop(layers, rows, policy),
    "sparse embedding": Loop(SparseBag, words(4, 5), sine),
    "tied weights": Loop(Tied, words(6), same_word),
    "U-net": Loop(UNet, lambda number: torch.randn(2, 3, 8, 8), square),
    "variational": Loop(Variational, rows, lambda net, x: net(x)),
}


@pytest.mark.parametrize("is_loss_compiled", [False, True], ids=["net", "loss"])
@pytest.mark.parametrize("compiler", ["gradc", "gradc_captured"])
@pytest.mark.parametrize("name", LOOPS)
def test_loop(name: str, compiler: str, is_loss_compiled: bool) -> None:
    loop = LOOPS[name]
    check(lambda compile, net: loop.run(compile, net, is_loss_compiled), loop.net, compiler=find(compiler))


@pytest.mark.parametrize("name", LOOPS)
def test_loop_captured_after_an_eager_forward(name: str) -> None:
    loop = LOOPS[name]
    report = check(lambda compile, net: loop.run(compile, net, False), loop.net, compiler=find("captured"))
    assert not report.fallbacks
