"""More small training scripts: what people train every day, written as it is found in public; our own code.

EVERYDAY: name -> (compile for the model, compile for the step) -> Script
"""

from __future__ import annotations

import collections
import copy
import itertools
import math
import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy
import torch
from torch import Tensor, nn
from torch.distributions import Categorical, Normal
from torch.nn import functional as F

from benchmarks.scripts import Compile, Script, perceptron


def parameters_of(*modules: nn.Module) -> list[nn.Parameter]:
    return [parameter for module in modules for parameter in module.parameters()]


# ---- reinforcement learning from batches


class Agent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.critic, self.actor = perceptron(4, 64, 64, 1), perceptron(4, 64, 64, 2)

    def get_action_and_value(self, x: Tensor, action: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        chosen = Categorical(logits=self.actor(x))
        if action is None:
            action = chosen.sample()
        return action, chosen.log_prob(action), chosen.entropy(), self.critic(x)


def ppo_minibatches(model: Compile, step: Compile) -> Script:
    """Proximal policy optimization in one file: NumPy's indices, numbers for a log, an early end."""
    agent = Agent()
    optimizer, clipped = torch.optim.Adam(agent.parameters(), lr=2.5e-4, eps=1e-5), collections.deque[float](maxlen=100)
    evaluate = model(agent.get_action_and_value)

    @step
    def update(obs: Tensor, actions: Tensor, logs: Tensor, advantages: Tensor, returns: Tensor, values: Tensor) -> float:
        indices, approximate = numpy.arange(len(obs)), torch.zeros(())
        for _ in range(2):
            numpy.random.shuffle(indices)
            for start in range(0, len(obs), 32):
                part = indices[start : start + 32]
                _, log, entropy, value = evaluate(obs[part], actions[part])
                ratio = (log - logs[part]).exp()
                with torch.no_grad():
                    approximate = ((ratio - 1) - ratio.log()).mean()
                    clipped.append(((ratio - 1.0).abs() > 0.2).float().mean().item())
                gains = advantages[part]
                gains = (gains - gains.mean()) / (gains.std() + 1e-8)
                policy_loss = torch.max(-gains * ratio, -gains * torch.clamp(ratio, 0.8, 1.2)).mean()
                value = value.view(-1)
                near = values[part] + torch.clamp(value - values[part], -0.2, 0.2)
                value_loss = 0.5 * torch.max((value - returns[part]) ** 2, (near - returns[part]) ** 2).mean()
                loss = policy_loss - 0.01 * entropy.mean() + 0.5 * value_loss
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
                optimizer.step()
            if approximate > 0.5:
                break
        expected, found = returns.numpy(), values.numpy()
        return float(1 - numpy.var(expected - found) / numpy.var(expected))

    def learn() -> None:
        numpy.random.seed(random.randrange(1000))
        obs = torch.randn(128, 4)
        with torch.no_grad():
            actions, logs, _, values = agent.get_action_and_value(obs)
        returns = values.view(-1) + torch.randn(128)
        update(obs, actions, logs, returns - values.view(-1), returns, values.view(-1))

    return Script(learn, parameters_of(agent))


def q_learning(model: Compile, step: Compile) -> Script:
    """A buffer of NumPy's arrays in a deque; a target network that follows by ``.data``; a rate of exploration in Python."""
    network, target = perceptron(4, 120, 84, 2, activation=nn.ReLU), perceptron(4, 120, 84, 2, activation=nn.ReLU)
    target.load_state_dict(network.state_dict())
    optimizer, buffer, losses = torch.optim.Adam(network.parameters(), lr=1e-3), collections.deque[Any](maxlen=500), []
    values, number = model(network), 0

    def transition() -> tuple[Any, ...]:
        state = numpy.array([random.gauss(0, 1) for _ in range(8)], dtype=numpy.float32)
        return state[:4], random.randrange(2), random.random(), state[4:], random.random() < 0.1

    buffer.extend(transition() for _ in range(200))

    @step
    def update(batch: list[Any]) -> None:
        states, actions, rewards, following, ends = (numpy.stack(parts) for parts in zip(*batch))
        with torch.no_grad():
            best, _ = target(torch.from_numpy(following)).max(dim=1)
            wanted = torch.tensor(rewards, dtype=torch.float32) + 0.99 * best * (1 - torch.tensor(ends).float())
        old = values(torch.from_numpy(states)).gather(1, torch.as_tensor(actions)[:, None]).squeeze()
        loss = F.mse_loss(wanted, old)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        for mine, its in zip(network.parameters(), target.parameters()):
            its.data.copy_(0.01 * mine.data + 0.99 * its.data)

    def learn() -> None:
        nonlocal number
        number += 1
        buffer.append(transition())
        update(random.sample(buffer, 64))

    return Script(learn, parameters_of(network, target))


class SquashedActor(nn.Module):
    scale: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.body, self.mean, self.log_std = perceptron(6, 64, 64, activation=nn.ReLU), nn.Linear(64, 2), nn.Linear(64, 2)
        self.register_buffer("scale", torch.tensor([2.0, 1.0]))

    def get_action(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = F.relu(self.body(x))
        log_std = -5 + 0.5 * 7 * (torch.tanh(self.log_std(x)) + 1)
        normal = Normal(self.mean(x), log_std.exp())
        drawn = normal.rsample()
        squashed = torch.tanh(drawn)
        log = normal.log_prob(drawn) - torch.log(self.scale * (1 - squashed.pow(2)) + 1e-6)
        return squashed * self.scale, log.sum(1, keepdim=True)


def soft_actor_critic(model: Compile, step: Compile) -> Script:
    """Two critics, a squashed Gaussian policy, a temperature that is learned, targets that follow."""
    actor, critics = SquashedActor(), nn.ModuleList(perceptron(8, 64, 64, 1, activation=nn.ReLU) for _ in range(2))
    targets, log_alpha = copy.deepcopy(critics), torch.zeros(1, requires_grad=True)
    q_optimizer, a_optimizer = torch.optim.Adam(critics.parameters(), lr=1e-3), torch.optim.Adam(actor.parameters(), lr=3e-4)
    alpha_optimizer, act, number = torch.optim.Adam([log_alpha], lr=1e-3), model(actor.get_action), 0
    judge, history = [model(critic) for critic in critics], collections.defaultdict[str, list[float]](list)

    @step
    def update(data: dict[str, Tensor], is_delayed: bool) -> None:
        alpha = log_alpha.exp().item()
        with torch.no_grad():
            action, log = act(data["next"])
            least = torch.min(*(target(torch.cat([data["next"], action], 1)) for target in targets)) - alpha * log
            wanted = data["rewards"].flatten() + (1 - data["dones"].flatten()) * 0.99 * least.view(-1)
        found = [critic(torch.cat([data["obs"], data["actions"]], 1)).view(-1) for critic in judge]
        q_loss: Any = sum(F.mse_loss(one, wanted) for one in found)
        q_optimizer.zero_grad()
        q_loss.backward()
        q_optimizer.step()
        if is_delayed:
            action, log = act(data["obs"])
            both = [critic(torch.cat([data["obs"], action], 1)) for critic in judge]
            actor_loss = ((alpha * log) - torch.min(*both)).mean()
            a_optimizer.zero_grad()
            actor_loss.backward()
            a_optimizer.step()
            with torch.no_grad():
                _, log = act(data["obs"])
            alpha_loss = (-log_alpha.exp() * (log - 2.0)).mean()
            alpha_optimizer.zero_grad()
            alpha_loss.backward()
            alpha_optimizer.step()
        for parameter, target in zip(critics.parameters(), targets.parameters()):
            target.data.copy_(0.005 * parameter.data + 0.995 * target.data)
        history["q"].append(q_loss.item() / 2.0)

    def learn() -> None:
        nonlocal number
        number += 1
        sizes = {"obs": 6, "next": 6, "actions": 2, "rewards": 1}
        data = {name: torch.randn(64, size) for name, size in sizes.items()}
        update({**data, "dones": (torch.rand(64, 1) < 0.1).float()}, number % 2 == 0)

    return Script(learn, [*parameters_of(actor, critics, targets), log_alpha])


# ---- language


class SelfAttention(nn.Module):
    def __init__(self, width: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads, self.c_attn, self.c_proj = num_heads, nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        b, t, c = x.size()
        q, k, v = (
            part.view(b, t, self.num_heads, c // self.num_heads).transpose(1, 2) for part in self.c_attn(x).split(c, dim=2)
        )
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=0.1 if self.training else 0, is_causal=True)
        return self.c_proj(y.transpose(1, 2).contiguous().view(b, t, c))


class Layer(nn.Module):
    def __init__(self, width: int, num_heads: int) -> None:
        super().__init__()
        self.ln_1, self.attn, self.ln_2 = nn.LayerNorm(width), SelfAttention(width, num_heads), nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width), nn.Dropout(0.1))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class LanguageModel(nn.Module):
    def __init__(self, vocabulary: int = 65, block_size: int = 32, width: int = 64, depth: int = 3) -> None:
        super().__init__()
        self.block_size = block_size
        self.transformer = nn.ModuleDict(
            {
                "wte": nn.Embedding(vocabulary, width),
                "wpe": nn.Embedding(block_size, width),
                "h": nn.ModuleList(Layer(width, 4) for _ in range(depth)),
                "ln_f": nn.LayerNorm(width),
            }
        )
        self.lm_head = nn.Linear(width, vocabulary, bias=False)
        self.lm_head.weight = self.transformer["wte"].weight  # type: ignore[assignment]

    def forward(self, idx: Tensor, targets: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        _, t = idx.size()
        assert t <= self.block_size, f"a sequence of {t}, the block size is {self.block_size}"
        x = self.transformer["wte"](idx) + self.transformer["wpe"](torch.arange(0, t, dtype=torch.long, device=idx.device))
        for block in self.transformer["h"]:  # type: ignore[attr-defined]
            x = block(x)
        logits = self.lm_head(self.transformer["ln_f"](x))
        if targets is None:
            return logits, None
        return logits, F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1), ignore_index=-1)


def language_model(model: Compile, step: Compile) -> Script:
    """Windows of an array on disk, accumulated gradients, a warm-up and a cosine, decay by dimensions."""
    network, data = LanguageModel(), numpy.random.default_rng(0).integers(0, 65, 10_000).astype(numpy.uint16)
    decayed, others = ([p for p in network.parameters() if (p.dim() >= 2) is wanted] for wanted in (True, False))
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    optimizer, call, number, smooth = torch.optim.AdamW(groups, lr=1e-3, betas=(0.9, 0.95)), model(network), 0, -1.0

    def rate(iteration: int) -> float:
        if iteration < 20:
            return 1e-3 * (iteration + 1) / 21
        return 1e-4 + 0.5 * (1.0 + math.cos(math.pi * min(1.0, iteration / 300))) * 9e-4

    def get_batch() -> tuple[Tensor, Tensor]:
        starts = torch.randint(len(data) - 32, (8,))
        x = torch.stack([torch.from_numpy(data[i : i + 32].astype(numpy.int64)) for i in starts])
        y = torch.stack([torch.from_numpy(data[i + 1 : i + 33].astype(numpy.int64)) for i in starts])
        return x, y

    @step
    def train(batches: list[tuple[Tensor, Tensor]]) -> Tensor:
        loss = torch.zeros(())
        for x, y in batches:
            with torch.autocast("cpu", torch.bfloat16, enabled=False):
                _, loss = call(x, y)
                loss = loss / len(batches)
            loss.backward()
        nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss

    def iteration() -> None:
        nonlocal number, smooth
        for group in optimizer.param_groups:
            group["lr"] = rate(number)
        loss = train([get_batch() for _ in range(2)])
        if number % 10 == 0:
            smooth = loss.item() if smooth < 0 else 0.9 * smooth + 0.1 * loss.item()
        number += 1

    return Script(iteration, list(network.parameters()))


class WordModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.drop, self.encoder, self.decoder = nn.Dropout(0.2), nn.Embedding(200, 32), nn.Linear(32, 200)
        self.rnn = nn.LSTM(32, 32, 2, dropout=0.2)

    def forward(self, words: Tensor, hidden: Any) -> tuple[Tensor, Any]:
        output, hidden = self.rnn(self.drop(self.encoder(words)), hidden)
        return F.log_softmax(self.decoder(self.drop(output)).view(-1, 200), dim=1), hidden


def detached(hidden: Any) -> Any:
    return hidden.detach() if isinstance(hidden, Tensor) else tuple(detached(part) for part in hidden)


def word_model(model: Compile, step: Compile) -> Script:
    """An LSTM whose state goes from batch to batch; the weights are updated by hand."""
    network = WordModel()
    call, corpus, hidden, total = model(network), torch.randint(200, (600, 8)), (torch.zeros(2, 8, 32),) * 2, 0.0
    starts = itertools.cycle(range(0, 560, 20))

    @step
    def train(data: Tensor, targets: Tensor, hidden: Any) -> tuple[Any, float]:
        network.zero_grad()
        hidden = detached(hidden)
        output, hidden = call(data, hidden)
        loss = F.nll_loss(output, targets)
        loss.backward()
        nn.utils.clip_grad_norm_(network.parameters(), 0.25)
        for p in network.parameters():
            if p.grad is not None:
                p.data.add_(p.grad, alpha=-2.0)
        return hidden, loss.item()

    def batch() -> None:
        nonlocal hidden, total
        start = next(starts)
        hidden, loss = train(corpus[start : start + 20], corpus[start + 1 : start + 21].view(-1), hidden)
        total += loss

    return Script(batch, list(network.parameters()))


class AttentiveDecoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.out, self.cell = nn.Embedding(40, 32), nn.Linear(32, 40), nn.GRU(64, 32, batch_first=True)
        self.query, self.key, self.score = nn.Linear(32, 32), nn.Linear(32, 32), nn.Linear(32, 1)

    def forward(self, encoded: Tensor, hidden: Tensor, target: Tensor | None) -> Tensor:
        word, outputs = torch.zeros(len(encoded), 1, dtype=torch.long), []
        for number in range(10):
            embedded, query = self.embedding(word), hidden.permute(1, 0, 2)
            scores = self.score(torch.tanh(self.query(query) + self.key(encoded))).squeeze(2).unsqueeze(1)
            context = torch.bmm(F.softmax(scores, dim=-1), encoded)
            output, hidden = self.cell(torch.cat((embedded, context), dim=2), hidden)
            outputs.append(self.out(output))
            if target is not None:
                word = target[:, number].unsqueeze(1)
            else:
                word = outputs[-1].topk(1)[1].squeeze(-1).detach()
        return F.log_softmax(torch.cat(outputs, dim=1), dim=-1)


def translation(model: Compile, step: Compile) -> Script:
    """A GRU reads a sentence, another writes one with attention: from the truth half of the time, else from its own words."""
    embedding, encoder, decoder = nn.Embedding(40, 32), nn.GRU(32, 32, batch_first=True), AttentiveDecoder()
    optimizers = [torch.optim.Adam(parameters_of(*part), lr=1e-3) for part in ((embedding, encoder), (decoder,))]
    call, criterion, total = model(decoder), nn.NLLLoss(), 0.0

    @step
    def train(source: Tensor, target: Tensor, is_forced: bool) -> float:
        for optimizer in optimizers:
            optimizer.zero_grad()
        encoded, hidden = encoder(F.dropout(embedding(source), 0.1))
        outputs = call(encoded, hidden, target if is_forced else None)
        loss = criterion(outputs.view(-1, outputs.size(-1)), target.view(-1))
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
        return loss.item()

    def batch() -> None:
        nonlocal total
        total += train(torch.randint(40, (16, 10)), torch.randint(40, (16, 10)), random.random() < 0.5)

    return Script(batch, parameters_of(embedding, encoder, decoder))


def masked_language_model(model: Compile, step: Compile) -> Script:
    """Words are hidden by draws, as a collator does it; the loss is of the hidden ones alone."""
    layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.1, batch_first=True, activation="gelu", norm_first=True)
    words, positions, head = nn.Embedding(100, 32), nn.Embedding(24, 32), nn.Linear(32, 100)
    encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    parameters = parameters_of(words, positions, head, encoder)
    optimizer, call = torch.optim.AdamW(parameters, lr=5e-4), model(encoder)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-3, total_steps=10_000)

    def hide(inputs: Tensor) -> tuple[Tensor, Tensor]:
        labels, inputs = inputs.clone(), inputs.clone()
        hidden = torch.bernoulli(torch.full(labels.shape, 0.15)).bool()
        labels[~hidden] = -100
        replaced = torch.bernoulli(torch.full(labels.shape, 0.8)).bool() & hidden
        inputs[replaced] = 1
        other = torch.bernoulli(torch.full(labels.shape, 0.5)).bool() & hidden & ~replaced
        inputs[other] = torch.randint(100, labels.shape, dtype=torch.long)[other]
        return inputs, labels

    @step
    def train(batch: Tensor, lengths: Tensor) -> float:
        inputs, labels = hide(batch)
        is_padding = torch.arange(batch.size(1))[None] >= lengths[:, None]
        x = words(inputs) + positions(torch.arange(batch.size(1)))
        x = call(x, src_key_padding_mask=is_padding)
        loss = F.cross_entropy(head(x).view(-1, 100), labels.masked_fill(is_padding, -100).view(-1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        return loss.item()

    return Script(lambda: train(torch.randint(2, 100, (8, 24)), torch.randint(12, 25, (8,))), parameters)


# ---- images


class Autoencoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc21, self.fc22 = nn.Linear(196, 100), nn.Linear(100, 10), nn.Linear(100, 10)
        self.fc3, self.fc4 = nn.Linear(10, 100), nn.Linear(100, 196)

    def reparameterize(self, mean: Tensor, log_var: Tensor) -> Tensor:
        std = torch.exp(0.5 * log_var)
        return mean + torch.randn_like(std) * std

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        h = F.relu(self.fc1(x.view(-1, 196)))
        mean, log_var = self.fc21(h), self.fc22(h)
        return torch.sigmoid(self.fc4(F.relu(self.fc3(self.reparameterize(mean, log_var))))), mean, log_var


def variational_autoencoder(model: Compile, step: Compile) -> Script:
    network = Autoencoder()
    optimizer, call, total, number = torch.optim.Adam(network.parameters(), lr=1e-3), model(network), 0.0, 0

    def loss_function(restored: Tensor, x: Tensor, mean: Tensor, log_var: Tensor) -> Tensor:
        cross_entropy = F.binary_cross_entropy(restored, x.view(-1, 196), reduction="sum")
        return cross_entropy - 0.5 * torch.sum(1 + log_var - mean.pow(2) - log_var.exp())

    @step
    def train(data: Tensor, is_logged: bool) -> float:
        optimizer.zero_grad()
        restored, mean, log_var = call(data)
        loss = loss_function(restored, data, mean, log_var)
        loss.backward()
        value = loss.item()
        optimizer.step()
        if is_logged:
            messages.append(f"Train Epoch: {number // 10} Loss: {value / len(data):.6f}")
        return value

    messages: list[str] = []

    def batch() -> None:
        nonlocal total, number
        total += train(torch.rand(32, 1, 14, 14), number % 10 == 0)
        number += 1

    return Script(batch, list(network.parameters()))


class MomentumContrast(nn.Module):
    queue: Tensor
    pointer: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.encoder_q, self.encoder_k = (perceptron(32, 64, 16, activation=nn.ReLU) for _ in range(2))
        for mine, its in zip(self.encoder_q.parameters(), self.encoder_k.parameters()):
            its.data.copy_(mine.data)
            its.requires_grad = False
        self.register_buffer("queue", F.normalize(torch.randn(16, 128), dim=0))
        self.register_buffer("pointer", torch.zeros(1, dtype=torch.long))

    @torch.no_grad()
    def follow(self) -> None:
        for mine, its in zip(self.encoder_q.parameters(), self.encoder_k.parameters()):
            its.data = its.data * 0.999 + mine.data * (1.0 - 0.999)

    @torch.no_grad()
    def enqueue(self, keys: Tensor) -> None:
        start = int(self.pointer)
        self.queue[:, start : start + len(keys)] = keys.T
        self.pointer[0] = (start + len(keys)) % self.queue.size(1)

    def forward(self, one: Tensor, other: Tensor) -> tuple[Tensor, Tensor]:
        q = F.normalize(self.encoder_q(one), dim=1)
        with torch.no_grad():
            self.follow()
            order = torch.randperm(len(other))
            k = F.normalize(self.encoder_k(other[order]), dim=1)[torch.argsort(order)]
        positive = torch.einsum("nc,nc->n", [q, k]).unsqueeze(-1)
        negative = torch.einsum("nc,ck->nk", [q, self.queue.clone().detach()])
        logits = torch.cat([positive, negative], dim=1) / 0.07
        self.enqueue(k)
        return logits, torch.zeros(len(logits), dtype=torch.long)


class AverageMeter:
    def __init__(self, name: str) -> None:
        self.name, self.value, self.sum, self.count, self.average = name, 0.0, 0.0, 0, 0.0

    def update(self, value: float, number: int = 1) -> None:
        self.value, self.sum, self.count = value, self.sum + value * number, self.count + number
        self.average = self.sum / self.count

    def __str__(self) -> str:
        return f"{self.name} {self.value:.4f} ({self.average:.4f})"


def accuracy(output: Tensor, target: Tensor, topk: tuple[int, ...] = (1,)) -> list[Tensor]:
    with torch.no_grad():
        _, chosen = output.topk(max(topk), 1, True, True)
        correct = chosen.t().eq(target.view(1, -1).expand_as(chosen.t()))
        return [correct[:k].reshape(-1).float().sum(0, keepdim=True).mul_(100.0 / target.size(0)) for k in topk]


def momentum_contrast(model: Compile, step: Compile) -> Script:
    """An encoder that follows, a queue with a pointer, meters of loss and accuracy."""
    network = MomentumContrast()
    optimizer, call = torch.optim.SGD(network.encoder_q.parameters(), lr=0.03, momentum=0.9, weight_decay=1e-4), model(network)
    losses, best = AverageMeter("Loss"), AverageMeter("Acc@1")

    @step
    def train(images: list[Tensor]) -> None:
        output, target = call(images[0], images[1])
        loss = F.cross_entropy(output, target)
        (first, _) = accuracy(output, target, topk=(1, 5))
        losses.update(loss.item(), images[0].size(0))
        best.update(first[0].item(), images[0].size(0))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    def batch() -> None:
        images = torch.randn(16, 32)
        train([images + 0.1 * torch.randn(16, 32), images * (torch.rand(16, 32) > 0.2)])

    return Script(batch, [*network.parameters(), network.queue])


class Down(nn.Module):
    def __init__(self, channels: int, wider: int) -> None:
        super().__init__()
        layers = [nn.Conv2d(channels, wider, 3, padding=1, bias=False), nn.BatchNorm2d(wider), nn.ReLU(inplace=True)]
        self.maxpool_conv = nn.Sequential(nn.MaxPool2d(2), *layers)

    def forward(self, x: Tensor) -> Tensor:
        return self.maxpool_conv(x)


class Segmenter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inc = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU(inplace=True))
        self.down1, self.down2 = Down(8, 16), Down(16, 32)
        self.up1, self.up2 = nn.ConvTranspose2d(32, 16, 2, stride=2), nn.ConvTranspose2d(16, 8, 2, stride=2)
        self.mix1, self.mix2, self.outc = nn.Conv2d(32, 16, 3, padding=1), nn.Conv2d(16, 8, 3, padding=1), nn.Conv2d(8, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        x1 = self.inc(x)
        x2 = self.down1(x1)
        x = self.up1(self.down2(x2))
        height, width = x2.size(2) - x.size(2), x2.size(3) - x.size(3)
        x = F.pad(x, [width // 2, width - width // 2, height // 2, height - height // 2])
        x = F.relu(self.mix1(torch.cat([x2, x], dim=1)))
        return self.outc(F.relu(self.mix2(torch.cat([x1, self.up2(x)], dim=1))))


def dice_loss(found: Tensor, target: Tensor) -> Tensor:
    assert found.size() == target.size()
    inter = 2 * (found * target).sum(dim=(-1, -2))
    union = found.sum(dim=(-1, -2)) + target.sum(dim=(-1, -2))
    return 1 - ((torch.where(union == 0, inter, union) * 0 + inter + 1e-6) / (union + 1e-6)).mean()


def segmentation(model: Compile, step: Compile) -> Script:
    """A U-Net under a scaler that is off, RMSprop, clipped gradients, an evaluation now and then that moves the rate."""
    network, number = Segmenter(), 0
    optimizer = torch.optim.RMSprop(network.parameters(), lr=1e-4, weight_decay=1e-8, momentum=0.9, foreach=True)
    schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, "max", patience=5)
    scaler, call, epoch_loss = torch.amp.GradScaler("cpu", enabled=False), model(network), 0.0

    @step
    def train(images: Tensor, masks: Tensor) -> float:
        images = images.to(device="cpu", dtype=torch.float32, memory_format=torch.channels_last)
        with torch.autocast("cpu", enabled=False):
            found = call(images)
            loss = F.binary_cross_entropy_with_logits(found.squeeze(1), masks.float())
            loss = loss + dice_loss(torch.sigmoid(found.squeeze(1)), masks.float())
        optimizer.zero_grad(set_to_none=True)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        return loss.item()

    @torch.inference_mode()
    def evaluate(images: Tensor, masks: Tensor) -> float:
        network.eval()
        found = (torch.sigmoid(network(images)) > 0.5).float()
        network.train()
        return 1 - dice_loss(found.squeeze(1), masks.float()).item()

    def batch() -> None:
        nonlocal number, epoch_loss
        images, masks = torch.rand(2, 3, 32, 32), torch.randint(2, (2, 32, 32))
        epoch_loss += train(images, masks)
        number += 1
        if number % 50 == 0:
            schedule.step(evaluate(images, masks))

    return Script(batch, list(network.parameters()))


def radiance_field(model: Compile, step: Compile) -> Script:
    """Rays, samples along them, an encoding by sines, colours by cumulated products."""
    network = perceptron(39, 64, 64, 4, activation=nn.ReLU)
    optimizer, call, number = torch.optim.Adam(network.parameters(), lr=5e-4), model(network), 0

    def encoded(x: Tensor) -> Tensor:
        return torch.cat([x, *(wave(x * 2.0**level) for level in range(6) for wave in (torch.sin, torch.cos))], -1)

    def render(origins: Tensor, directions: Tensor, num_samples: int) -> tuple[Tensor, Tensor]:
        depths = torch.linspace(2.0, 6.0, num_samples)
        depths = depths + torch.rand(len(origins), num_samples) * 4.0 / num_samples
        points = origins[:, None] + directions[:, None] * depths[..., None]
        raw = call(encoded(points.reshape(-1, 3))).reshape(*points.shape[:-1], 4)
        distances = torch.cat([depths[:, 1:] - depths[:, :-1], torch.full_like(depths[:, :1], 1e10)], -1)
        alpha = 1.0 - torch.exp(-F.relu(raw[..., 3]) * distances)
        through = torch.cumprod(torch.cat([torch.ones_like(alpha[:, :1]), 1.0 - alpha + 1e-10], -1), -1)[:, :-1]
        weights = alpha * through
        return (weights[..., None] * torch.sigmoid(raw[..., :3])).sum(-2), (weights * depths).sum(-1)

    @step
    def train(origins: Tensor, directions: Tensor, colours: Tensor) -> tuple[float, float]:
        found, _ = render(origins, F.normalize(directions, dim=-1), 16)
        optimizer.zero_grad()
        loss = torch.mean((found - colours) ** 2)
        psnr = -10.0 * torch.log(loss) / torch.log(torch.tensor([10.0]))
        loss.backward()
        optimizer.step()
        return loss.item(), psnr.item()

    def iteration() -> None:
        nonlocal number
        train(torch.randn(64, 3), torch.randn(64, 3), torch.rand(64, 3))
        number += 1
        for group in optimizer.param_groups:
            group["lr"] = 5e-4 * 0.1 ** (number / 250_000)

    return Script(iteration, list(network.parameters()))


def distillation(model: Compile, step: Compile) -> Script:
    """A student under bf16 autocast learns from a teacher's logits and from labels; a scaler; the best state is kept."""
    teacher, student = perceptron(64, 256, 256, 10, activation=nn.ReLU), perceptron(64, 64, 10, activation=nn.ReLU)
    teacher.eval().requires_grad_(False)
    optimizer, scaler, number = torch.optim.AdamW(student.parameters(), lr=1e-3), torch.amp.GradScaler("cpu"), 0
    call, best, kept = model(student), math.inf, copy.deepcopy(student.state_dict())

    @step
    def train(x: Tensor, y: Tensor) -> float:
        student.train()
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            with torch.no_grad():
                wanted = teacher(x)
            found = call(x)
            soft = F.kl_div(F.log_softmax(found / 2.0, -1), F.softmax(wanted / 2.0, -1), reduction="batchmean") * 4.0
            loss = 0.25 * soft + 0.75 * F.cross_entropy(found, y, label_smoothing=0.1)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return loss.item()

    def batch() -> None:
        nonlocal best, kept, number
        loss = train(torch.randn(64, 64), torch.randint(10, (64,)))
        number += 1
        if number % 25 == 0 and loss < best:
            best, kept = loss, copy.deepcopy(student.state_dict())

    return Script(batch, list(student.parameters()))


# ---- science


def physics_informed(model: Compile, step: Compile) -> Script:
    """Burgers' equation: derivatives of the network by its inputs, a boundary, initial values."""
    network, viscosity = perceptron(2, 32, 32, 32, 1), 0.01 / math.pi
    optimizer, call, losses = torch.optim.Adam(network.parameters(), lr=1e-3), model(network), []

    def derivative(y: Tensor, x: Tensor) -> Tensor:
        return torch.autograd.grad(y, x, grad_outputs=torch.ones_like(y), create_graph=True, retain_graph=True)[0]

    @step
    def train(x: Tensor, t: Tensor, x0: Tensor) -> None:
        x.requires_grad_()
        t.requires_grad_()
        u = call(torch.cat([x, t], dim=1))
        u_x, u_t = derivative(u, x), derivative(u, t)
        residual = u_t + u * u_x - viscosity * derivative(u_x, x)
        initial = call(torch.cat([x0, torch.zeros_like(x0)], dim=1)) + torch.sin(math.pi * x0)
        loss = (residual**2).mean() + (initial**2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())

    return Script(
        lambda: train(torch.rand(64, 1) * 2 - 1, torch.rand(64, 1), torch.rand(32, 1) * 2 - 1), parameters_of(network)
    )


class Sequence(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm1, self.lstm2, self.linear = nn.LSTMCell(1, 24), nn.LSTMCell(24, 24), nn.Linear(24, 1)

    def forward(self, series: Tensor, future: int = 0) -> Tensor:
        h, c, g, d = (torch.zeros(series.size(0), 24) for _ in range(4))
        outputs, output = [], series[:, :1]
        for value in series.split(1, dim=1):
            h, c = self.lstm1(value, (h, c))
            g, d = self.lstm2(h, (g, d))
            output = self.linear(g)
            outputs.append(output)
        for _ in range(future):
            h, c = self.lstm1(output, (h, c))
            g, d = self.lstm2(h, (g, d))
            output = self.linear(g)
            outputs.append(output)
        return torch.cat(outputs, dim=1)


def sine_waves(model: Compile, step: Compile) -> Script:
    """Two cells over a series, by LBFGS with a closure."""
    network = Sequence()
    optimizer, call, losses = torch.optim.LBFGS(network.parameters(), lr=0.1, max_iter=4), model(network), []

    @step
    def train(series: Tensor, target: Tensor) -> None:
        def closure() -> Tensor:
            optimizer.zero_grad()
            loss = F.mse_loss(call(series), target)
            losses.append(loss.item())
            loss.backward()
            return loss

        optimizer.step(closure)

    def iteration() -> None:
        waves = torch.sin(torch.arange(21.0)[None] / 5 + torch.rand(6, 1) * 10)
        train(waves[:, :-1], waves[:, 1:])

    return Script(iteration, list(network.parameters()))


class Coupling(nn.Module):
    mask: Tensor

    def __init__(self, mask: Tensor) -> None:
        super().__init__()
        self.scale, self.shift = (
            perceptron(2, 32, 32, 2, activation=nn.LeakyReLU),
            perceptron(2, 32, 32, 2, activation=nn.LeakyReLU),
        )
        self.register_buffer("mask", mask)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        kept = x * self.mask
        s, t = torch.tanh(self.scale(kept)) * (1 - self.mask), self.shift(kept) * (1 - self.mask)
        return kept + (1 - self.mask) * (x - t) * torch.exp(-s), -s.sum(dim=1)


class Flow(nn.Module):
    mean: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Coupling(torch.tensor([number % 2, 1 - number % 2]).float()) for number in range(4))
        self.register_buffer("mean", torch.zeros(2))

    def log_prob(self, x: Tensor) -> Tensor:
        log_det = x.new_zeros(x.shape[0])
        for layer in reversed(self.layers):
            x, more = layer(x)
            log_det += more
        prior = torch.distributions.MultivariateNormal(self.mean, torch.eye(2))
        return prior.log_prob(x) + log_det


def flow(model: Compile, step: Compile) -> Script:
    """Coupling layers and a normal distribution; values that are not finite are left out."""
    network = Flow()
    optimizer, call, losses = torch.optim.Adam(network.parameters(), lr=1e-4, weight_decay=1e-5), model(network.log_prob), []

    @step
    def train(x: Tensor) -> None:
        optimizer.zero_grad()
        loss = -call(x).mean()
        if not (torch.isnan(loss) | torch.isinf(loss)):
            loss.backward()
            optimizer.step()
        losses.append(loss.item())

    def iteration() -> None:
        angle = torch.rand(128) * math.pi
        train(torch.stack([angle.cos(), angle.sin()], -1) + 0.1 * torch.randn(128, 2))

    return Script(iteration, list(network.parameters()))


def meta_learning(model: Compile, step: Compile) -> Script:
    """Model-agnostic meta-learning of sines: an inner update by hand, gradients through it."""
    network = perceptron(1, 40, 40, 1, activation=nn.ReLU)
    optimizer, call = torch.optim.Adam(network.parameters(), lr=1e-3), model(torch.func.functional_call)

    @step
    def train(tasks: list[tuple[Tensor, Tensor]]) -> float:
        losses = []
        for x, y in tasks:
            weights: dict[str, Tensor] = dict(network.named_parameters())
            inner = F.mse_loss(call(network, weights, (x[:10],)), y[:10])
            grads = torch.autograd.grad(inner, list(weights.values()), create_graph=True)
            weights = {name: value - 0.01 * grad for (name, value), grad in zip(weights.items(), grads)}
            losses.append(F.mse_loss(call(network, weights, (x[10:],)), y[10:]))
        loss = torch.stack(losses).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.item()

    def tasks() -> Iterator[tuple[Tensor, Tensor]]:
        for _ in range(4):
            x = torch.rand(20, 1) * 10 - 5
            yield x, random.uniform(0.1, 5.0) * torch.sin(x + random.uniform(0, math.pi))

    return Script(lambda: train(list(tasks())), list(network.parameters()))


class GraphConvolution(nn.Module):
    def __init__(self, size: int, out: int) -> None:
        super().__init__()
        self.lin, self.bias = nn.Linear(size, out, bias=False), nn.Parameter(torch.zeros(out))

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        row, column = edges
        degree = torch.zeros(len(x)).scatter_add_(0, column, torch.ones(len(column)))
        root = degree.pow(-0.5)
        root = root.masked_fill(root == float("inf"), 0)
        message = self.lin(x)[row] * (root[row] * root[column])[:, None]
        return torch.zeros(len(x), message.size(1)).index_add_(0, column, message) + self.bias


class GraphNetwork(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = GraphConvolution(32, 16), GraphConvolution(16, 4)

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        x = F.dropout(x, p=0.5, training=self.training)
        x = self.conv1(x, edges).relu()
        return self.conv2(F.dropout(x, p=0.5, training=self.training), edges)


def graph(model: Compile, step: Compile) -> Script:
    """A citation network, whole in each step; the loss is of the nodes in a mask, and so are the accuracies."""
    network, x, y = GraphNetwork(), torch.randn(300, 32), torch.randint(4, (300,))
    edges = torch.randint(300, (2, 1200))
    masks = [torch.rand(300) < share for share in (0.2, 0.4, 0.6)]
    groups: list[dict[str, Any]] = [
        {"params": network.conv1.parameters(), "weight_decay": 5e-4},
        {"params": network.conv2.parameters()},
    ]
    optimizer, call, best = torch.optim.Adam(groups, lr=0.01), model(network), 0.0

    @step
    def train() -> float:
        network.train()
        optimizer.zero_grad()
        out = call(x, edges)
        loss = F.cross_entropy(out[masks[0]], y[masks[0]])
        loss.backward()
        optimizer.step()
        return float(loss)

    @torch.no_grad()
    def test() -> list[float]:
        network.eval()
        found = call(x, edges).argmax(dim=-1)
        return [int((found[mask] == y[mask]).sum()) / int(mask.sum()) for mask in masks]

    def epoch() -> None:
        nonlocal best
        train()
        best = max(best, test()[1])

    return Script(epoch, list(network.parameters()))


class LocalLayer(nn.Linear):
    """Learns by itself, from what is good and what is bad."""

    def __init__(self, size: int, out: int) -> None:
        super().__init__(size, out)
        self.threshold, self.opt = 2.0, torch.optim.Adam(self.parameters(), lr=0.03)

    def forward(self, x: Tensor) -> Tensor:
        direction = x / (x.norm(2, 1, keepdim=True) + 1e-4)
        return F.relu(torch.mm(direction, self.weight.T) + self.bias.unsqueeze(0))


def local_layers(model: Compile, step: Compile) -> Script:
    """The forward-forward algorithm: each layer has its own loss, and an optimizer of its own."""
    layers = [LocalLayer(50, 64), LocalLayer(64, 64)]
    calls = [model(layer) for layer in layers]

    @step
    def train(good: Tensor, bad: Tensor) -> None:
        for layer, call in zip(layers, calls):
            goods, bads = call(good).pow(2).mean(1), call(bad).pow(2).mean(1)
            loss = torch.log(1 + torch.exp(torch.cat([-goods + layer.threshold, bads - layer.threshold]))).mean()
            layer.opt.zero_grad()
            loss.backward()
            layer.opt.step()
            good, bad = call(good).detach(), call(bad).detach()

    return Script(lambda: train(torch.rand(32, 50), torch.rand(32, 50)), parameters_of(*layers))


EVERYDAY: dict[str, Callable[[Compile, Compile], Script]] = {
    made.__name__: made
    for made in (
        ppo_minibatches, q_learning, soft_actor_critic, language_model, word_model, translation, masked_language_model,
        variational_autoencoder, momentum_contrast, segmentation, radiance_field, distillation, physics_informed, sine_waves,
        flow, meta_learning, graph, local_layers,
    )
}  # fmt: skip
