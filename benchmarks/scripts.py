"""Small training scripts of the kinds in which compiling gains little, or loses: re-made of public ones, our own code.

    SCRIPTS: name -> (compile for the model, compile for the step) -> Script

Each script is written as its kind is: with Python around its tensors, and functions that a compiler sees only in part.
"""

from __future__ import annotations

import copy
import dataclasses
import itertools
import math
import random
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy
import torch
from torch import Tensor, nn
from torch.nn import functional as F

Compile = Callable[[Any], Any]


@dataclasses.dataclass(frozen=True)
class Script:
    """``step``: what is called again and again. ``tensors``: what it trains, to be compared."""

    step: Callable[[], None]
    tensors: Iterable[Tensor]


def perceptron(*sizes: int, activation: type[nn.Module] = nn.Tanh) -> nn.Sequential:
    layers = [layer for a, b in itertools.pairwise(sizes) for layer in (nn.Linear(a, b), activation())]
    return nn.Sequential(*layers[:-1])


# ---- reinforcement learning: episodes, each of another length


def episodes(model: Compile, step: Compile) -> Script:
    """REINFORCE: the losses of an episode are gathered, and learned from at its end."""
    policy = nn.Linear(4, 2)
    optimizer, logs = torch.optim.Adam(policy.parameters()), []
    act = model(policy)

    @step
    def finish() -> None:
        loss = torch.stack(logs).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    def episode() -> None:
        logs.clear()
        for _ in range(random.randint(20, 60)):
            logs.append(act(torch.randn(4)).log_softmax(0)[random.randint(0, 1)])
        finish()

    return Script(episode, list(policy.parameters()))


class ActorCritic(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.actor, self.critic = nn.Linear(4, 64), nn.Linear(64, 2), nn.Linear(64, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = F.relu(self.body(x))
        return F.softmax(self.actor(x), dim=-1), self.critic(x)


def actor_critic(model: Compile, step: Compile) -> Script:
    """A cart with a pole, in NumPy; actions are drawn from a distribution, returns are discounted in Python."""
    network = ActorCritic()
    optimizer, actions, rewards = torch.optim.Adam(network.parameters(), lr=3e-2), [], []
    call = model(network)

    def select(state: numpy.ndarray) -> int:
        probabilities, value = call(torch.from_numpy(state).float())
        chosen = torch.distributions.Categorical(probabilities)
        action = chosen.sample()
        actions.append((chosen.log_prob(action), value))
        return int(action.item())

    @step
    def finish() -> None:
        sum_of_rewards, returns, policy_losses, value_losses = 0.0, [], [], []
        for reward in rewards[::-1]:
            sum_of_rewards = reward + 0.99 * sum_of_rewards
            returns.insert(0, sum_of_rewards)
        scaled = torch.tensor(returns)
        scaled = (scaled - scaled.mean()) / (scaled.std() + 1e-6)
        for (log, value), expected in zip(actions, scaled):
            policy_losses.append(-log * (expected - value.item()))
            value_losses.append(F.smooth_l1_loss(value, torch.tensor([expected])))
        optimizer.zero_grad()
        (torch.stack(policy_losses).sum() + torch.stack(value_losses).sum()).backward()
        optimizer.step()

    def episode() -> None:
        actions.clear()
        rewards.clear()
        state = numpy.array([random.uniform(-0.05, 0.05) for _ in range(4)])
        for _ in range(random.randint(15, 50)):
            push = 10.0 if select(state) else -10.0
            _, speed, angle, turn = state
            state = state + 0.02 * numpy.array([speed, push, turn, 9.8 * math.sin(angle) - push * math.cos(angle)])
            rewards.append(1.0)
        finish()

    return Script(episode, list(network.parameters()))


# ---- differential equations

_STAGES = (
    (),
    (1 / 5,),
    (3 / 40, 9 / 40),
    (44 / 45, -56 / 15, 32 / 9),
    (19372 / 6561, -25360 / 2187, 64448 / 6561, -212 / 729),
    (9017 / 3168, -355 / 33, 46732 / 5247, 49 / 176, -5103 / 18656),
    (35 / 384, 0.0, 500 / 1113, 125 / 192, -2187 / 6784, 11 / 84),
)
_ERRORS = (71 / 57600, 0.0, -71 / 16695, 71 / 1920, -17253 / 339200, 22 / 525, -1 / 40)


def dormand_prince(f: Callable[[Tensor], Tensor], y: Tensor, end: float, tolerance: float = 1e-4) -> Tensor:
    """Steps are accepted or made again, by the number that their error is."""
    t, size = 0.0, 0.05
    while t < end:
        size = min(size, end - t)
        slopes: list[Tensor] = []
        for stage in _STAGES:
            slopes.append(f(y + size * sum(a * k for a, k in zip(stage, slopes))))
        error: Any = size * sum(c * k for c, k in zip(_ERRORS, slopes))
        ratio = (error.detach().abs().max() / tolerance).item()
        if ratio <= 1.0:
            t, y = t + size, y + size * sum(a * k for a, k in zip(_STAGES[-1], slopes))
        size *= min(5.0, max(0.2, 0.9 * (ratio + 1e-9) ** -0.2))
    return y


def latent_ode(model: Compile, step: Compile) -> Script:
    """An encoder, a solver that chooses its own steps, a decoder."""
    encoder, field, decoder = nn.GRU(2, 8, batch_first=True), perceptron(4, 16, 4), nn.Linear(4, 2)
    parameters = [p for module in (encoder, field, decoder) for p in module.parameters()]
    optimizer, call = torch.optim.Adam(parameters, lr=1e-2), model(field)

    @step
    def learn(x: Tensor, end: float) -> float:
        mean, log_scale = encoder(x)[1][0].chunk(2, -1)
        z = mean + torch.randn_like(mean) * log_scale.exp()
        z = dormand_prince(call, z, end)
        divergence = 0.5 * (mean.square() + (2 * log_scale).exp() - 2 * log_scale - 1).sum(-1).mean()
        loss = F.mse_loss(decoder(z), x[:, -1]) + 1e-3 * divergence
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.item()

    return Script(lambda: learn(torch.randn(8, 5, 2), random.uniform(0.5, 2.0)), parameters)


def runge_kutta(f: Callable[..., Any], y: Any, num_steps: int, size: float) -> Any:
    def moved(y: Any, slope: Any, by: float) -> Any:
        return tuple(a + by * b for a, b in zip(y, slope))

    for _ in range(num_steps):
        a = f(y)
        b = f(moved(y, a, size / 2))
        c = f(moved(y, b, size / 2))
        d = f(moved(y, c, size))
        y = tuple(v + size / 6 * (p + 2 * q + 2 * r + s) for v, p, q, r, s in zip(y, a, b, c, d))
    return y


class Adjoint(torch.autograd.Function):
    """The solution of y' = f(y), and its gradients by an equation that is solved backward."""

    @staticmethod
    def forward(ctx: Any, field: Any, num_steps: int, y: Tensor, *parameters: Tensor) -> Tensor:
        ctx.field, ctx.num_steps, ctx.parameters = field, num_steps, parameters
        with torch.no_grad():
            (end,) = runge_kutta(lambda y: (field(y[0]),), (y,), num_steps, 1.0 / num_steps)
        ctx.save_for_backward(end)
        return end

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        (end,), field, parameters = ctx.saved_tensors, ctx.field, ctx.parameters

        def slope(state: Any) -> Any:
            with torch.enable_grad():
                y = state[0].detach().requires_grad_()
                out = field(y)
            grads = torch.autograd.grad(out, (y, *parameters), -state[1])
            return -out.detach(), *(-g for g in grads)

        state = (end, grad, *(torch.zeros_like(p) for p in parameters))
        state = runge_kutta(slope, state, ctx.num_steps, 1.0 / ctx.num_steps)
        return None, None, *state[1:]


def ode_adjoint(model: Compile, step: Compile) -> Script:
    field = perceptron(2, 16, 2)
    optimizer, call, parameters = torch.optim.Adam(field.parameters()), model(field), tuple(field.parameters())

    @step
    def learn(x: Tensor, num_steps: int) -> None:
        optimizer.zero_grad()
        loss = (Adjoint.apply(call, num_steps, x, *parameters) - x.flip(0)).square().mean()
        loss.backward()
        optimizer.step()

    return Script(lambda: learn(torch.randn(16, 2), random.randint(3, 12)), parameters)


# ---- structures


class TreeLSTM(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.gates, self.out = nn.Embedding(20, 16), nn.Linear(32, 80), nn.Linear(16, 3)

    def node(self, tree: Any) -> tuple[Tensor, Tensor]:
        if isinstance(tree, int):
            word = self.words(torch.tensor(tree))
            return word, torch.zeros_like(word)
        (h, c), (k, d) = map(self.node, tree)
        i, f, g, o, u = self.gates(torch.cat((h, k))).chunk(5)
        memory = torch.sigmoid(f) * c + torch.sigmoid(g) * d + torch.sigmoid(i) * torch.tanh(u)
        return torch.sigmoid(o) * torch.tanh(memory), memory

    def forward(self, tree: Any) -> Tensor:
        return self.out(self.node(tree)[0])


def random_tree(size: int) -> Any:
    if size == 1:
        return random.randrange(20)
    left = random.randint(1, size - 1)
    return random_tree(left), random_tree(size - left)


def trees(model: Compile, step: Compile) -> Script:
    """A recursion over trees, each of which is another."""
    network = TreeLSTM()
    optimizer, call = torch.optim.Adam(network.parameters()), model(network)

    @step
    def learn(tree: Any, label: Tensor) -> None:
        optimizer.zero_grad()
        F.cross_entropy(call(tree), label).backward()
        optimizer.step()

    def learn_one() -> None:
        learn(random_tree(random.randint(5, 20)), torch.tensor(random.randrange(3)))

    return Script(learn_one, list(network.parameters()))


def characters(model: Compile, step: Compile) -> Script:
    """A recurrent cell over words of any length, letter by letter."""
    cell, letters, out = nn.GRUCell(16, 32), nn.Embedding(30, 16), nn.Linear(32, 30)
    parameters = [p for module in (cell, letters, out) for p in module.parameters()]
    optimizer, call = torch.optim.SGD(parameters, lr=0.1), model(cell)

    @step
    def learn(word: Tensor) -> float:
        hidden, loss = torch.zeros(1, 32), torch.zeros(())
        for letter, following in itertools.pairwise(word):
            hidden = call(letters(letter)[None], hidden)
            loss = loss + F.cross_entropy(out(hidden), following[None])
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        return loss.item() / len(word)

    return Script(lambda: learn(torch.randint(30, (random.randint(4, 30),))), parameters)


# ---- dictionaries of tensors


class Tensors:
    """Tensors by name that are treated as one, as libraries of tensor dictionaries do."""

    def __init__(self, **tensors: Tensor) -> None:
        self._tensors = tensors

    def __getitem__(self, key: Any) -> Any:
        return self._tensors[key] if isinstance(key, str) else self.apply(lambda tensor: tensor[key])

    def __setitem__(self, name: str, tensor: Tensor) -> None:
        self._tensors[name] = tensor

    def __len__(self) -> int:
        return len(next(iter(self._tensors.values())))

    def items(self) -> Iterator[tuple[str, Tensor]]:
        yield from self._tensors.items()

    def apply(self, function: Callable[[Tensor], Tensor]) -> Tensors:
        return type(self)(**{name: function(tensor) for name, tensor in self.items()})

    def update(self, **tensors: Tensor) -> Tensors:
        return type(self)(**{**self._tensors, **tensors})

    @classmethod
    def stack(cls, parts: list[Tensors]) -> Tensors:
        return cls(**{name: torch.stack([part[name] for part in parts]) for name, _ in parts[0].items()})


def _transition() -> dict[str, Tensor]:
    return {"observation": torch.randn(6), "next": torch.randn(6), "action": torch.randn(2), "reward": torch.randn(1)}


class Critic(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = perceptron(8, 32, 32, 1, activation=nn.ReLU)

    def forward(self, data: Any) -> Any:
        return self.net(torch.cat((data["observation"], data["action"]), -1))


def _dictionaries(make: Callable[..., Any], stack: Callable[[list[Any]], Any], model: Compile, step: Compile) -> Script:
    """An actor and two critics learn from a buffer of dictionaries; targets follow slowly."""
    actor, critics = perceptron(6, 32, 2), [Critic(), Critic()]
    targets = copy.deepcopy(critics)
    weights = [p for critic in critics for p in critic.parameters()]
    learner, actor_learner = torch.optim.Adam(weights), torch.optim.Adam(actor.parameters())
    buffer = [make(**_transition()) for _ in range(64)]
    act, values = model(actor), [model(critic) for critic in critics]

    @step
    def update(batch: Any) -> dict[str, Tensor]:
        with torch.no_grad():
            ahead = make(observation=batch["next"], action=act(batch["next"]))
            future = torch.min(*(target(ahead) for target in targets))
            batch["target"] = batch["reward"] + 0.99 * future
        loss: Any = sum(F.mse_loss(value(batch), batch["target"]) for value in values)
        learner.zero_grad()
        loss.backward()
        learner.step()
        own = make(observation=batch["observation"], action=act(batch["observation"]))
        gain = -values[0](own).mean()
        actor_learner.zero_grad()
        gain.backward()
        actor_learner.step()
        with torch.no_grad():
            for critic, target in zip(critics, targets):
                for p, q in zip(critic.parameters(), target.parameters()):
                    q.lerp_(p, 0.005)
        return {"loss": loss.detach(), "gain": gain.detach()}

    def learn() -> None:
        buffer[random.randrange(64)] = make(**_transition())
        update(stack([buffer[random.randrange(64)] for _ in range(16)]))

    return Script(learn, [*weights, *actor.parameters()])


def dictionaries(model: Compile, step: Compile) -> Script:
    return _dictionaries(Tensors, Tensors.stack, model, step)


def tensordicts(model: Compile, step: Compile) -> Script:
    """The same with the library tensordict, which is imported from what is installed."""
    from tensordict import TensorDict  # type: ignore[import-not-found, unused-ignore]

    return _dictionaries(lambda **tensors: TensorDict(tensors), lambda parts: torch.stack(parts).contiguous(), model, step)


# ---- trainers


class Averages:
    """Exponential moving averages of weights."""

    def __init__(self, module: nn.Module) -> None:
        self.num_updates, self.shadow = 0, {name: p.detach().clone() for name, p in module.named_parameters()}

    @torch.no_grad()
    def update(self, module: nn.Module) -> None:
        self.num_updates += 1
        decay = min(0.999, (1 + self.num_updates) / (10 + self.num_updates))
        for name, p in module.named_parameters():
            if p.requires_grad:
                self.shadow[name].sub_((1 - decay) * (self.shadow[name] - p))


class Denoiser(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.time, self.norm = nn.Linear(16, 8), nn.GroupNorm(2, 8)
        self.a, self.b, self.c = nn.Conv2d(1, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1), nn.Conv2d(8, 1, 1)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        angles = t[:, None].float() * torch.exp(-math.log(1e4) * torch.arange(8) / 8)
        time = self.time(torch.cat((angles.sin(), angles.cos()), -1))
        h = F.silu(self.a(x)) + time[:, :, None, None]
        return self.c(F.silu(self.b(self.norm(h))) + h)


def diffusion(model: Compile, step: Compile) -> Script:
    """A trainer as people write it: schedules, timesteps, averages of weights, a line in a log."""
    network = Denoiser()
    alphas = torch.cumprod(1 - torch.linspace(1e-4, 0.02, 1000), 0)
    optimizer, averages, call = torch.optim.AdamW(network.parameters()), Averages(network), model(network)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda number: min(1.0, (number + 1) / 50))
    log: list[str] = []

    @step
    def train(images: Tensor) -> None:
        t = torch.randint(0, 1000, (len(images),))
        noise = torch.randn_like(images)
        a = alphas.gather(0, t)[:, None, None, None]
        predicted = call(a.sqrt() * images + (1 - a).sqrt() * noise, t)
        weight = torch.clamp(a / (1 - a), max=5.0).flatten()
        loss = (F.mse_loss(predicted, noise, reduction="none").mean((1, 2, 3)) * weight).mean()
        loss.backward()
        norm = nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        averages.update(network)
        log.append(f"loss {loss.item():.4f} norm {norm.item():.3f} lr {schedule.get_last_lr()[0]:.2e}")

    return Script(lambda: train(torch.randn(4, 1, 8, 8)), [*network.parameters(), *averages.shadow.values()])


class Noisy(nn.Module):
    """Twenty layers, each of which writes down what it sees."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(20))
        self.log: list[tuple[int, float]] = []

    def forward(self, x: Tensor) -> Tensor:
        self.log.clear()
        for number, layer in enumerate(self.layers):
            x = torch.tanh(layer(x))
            self.log.append((number, x.mean().item()))
            if numpy.abs(x.detach().numpy()).max() > 100.0:
                x = x / 100.0
        return x


def breaks(model: Compile, step: Compile) -> Script:
    """Dozens of places where numbers are read."""
    network = Noisy()
    optimizer, call = torch.optim.SGD(network.parameters(), lr=0.01), model(network)

    @step
    def train(x: Tensor) -> float:
        loss = call(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.item()

    return Script(lambda: train(torch.randn(4, 16)), list(network.parameters()))


def small_functions(model: Compile, step: Compile) -> Script:
    """Thirty functions, each compiled by itself, and called from Python."""
    scales = [torch.full((8,), 1.0 + 0.01 * number, requires_grad=True) for number in range(30)]

    def made(number: int) -> Callable[[Tensor, Tensor], Tensor]:
        namespace: dict[str, Any] = {"torch": torch}
        exec(f"def scaled{number}(x, scale):\n    return torch.tanh(x * scale) + 0.01 * {number}", namespace)
        return model(namespace[f"scaled{number}"])

    functions, optimizer = [made(number) for number in range(30)], torch.optim.SGD(scales, lr=0.01)

    @step
    def train(x: Tensor) -> None:
        for function, scale in zip(functions, scales):
            x = function(x, scale)
        optimizer.zero_grad()
        x.square().mean().backward()
        optimizer.step()

    return Script(lambda: train(torch.randn(4, 8)), scales)


def adversaries(model: Compile, step: Compile) -> Script:
    """A generator and a discriminator in turn, with penalties now and then, and numbers for a log."""
    generator, critic = perceptron(8, 32, 16), perceptron(16, 32, 1, activation=nn.LeakyReLU)
    made, judged = model(generator), model(critic)
    a, b = (torch.optim.Adam(module.parameters(), betas=(0.5, 0.9)) for module in (generator, critic))
    history: dict[str, list[float]] = {"critic": [], "generator": [], "penalty": []}
    number = 0

    @step
    def train(real: Tensor) -> None:
        nonlocal number
        number += 1
        false = made(torch.randn(len(real), 8))
        loss = judged(false.detach()).mean() - judged(real).mean()
        if number % 4 == 0:
            mixed = torch.lerp(real, false.detach(), torch.rand(len(real), 1)).requires_grad_()
            (grad,) = torch.autograd.grad(judged(mixed).sum(), mixed, create_graph=True)
            penalty = (grad.norm(dim=1) - 1).square().mean()
            history["penalty"].append(penalty.item())
            loss = loss + 10 * penalty
        b.zero_grad()
        loss.backward()
        b.step()
        history["critic"].append(loss.item())
        loss = -judged(made(torch.randn(len(real), 8))).mean()
        a.zero_grad()
        loss.backward()
        a.step()
        history["generator"].append(loss.item())

    return Script(lambda: train(torch.randn(16, 16)), [*generator.parameters(), *critic.parameters()])


def tiny(model: Compile, step: Compile) -> Script:
    """A step of some tens of microseconds, with a number that is read."""
    weight = torch.zeros(4, requires_grad=True)
    log: list[float] = []

    def error(x: Tensor) -> Tensor:
        log[:] = [float(x[0])]
        return (x * weight).sum() - 1.0

    call = model(error)

    @step
    def train(x: Tensor) -> None:
        (grad,) = torch.autograd.grad(call(x).square(), weight)
        with torch.no_grad():
            weight.sub_(grad, alpha=0.01)

    return Script(lambda: train(torch.randn(4)), [weight])


SCRIPTS: dict[str, Callable[[Compile, Compile], Script]] = {
    made.__name__: made
    for made in (
        episodes, actor_critic, latent_ode, ode_adjoint, trees, characters, dictionaries, tensordicts, diffusion, breaks,
        small_functions, adversaries, tiny,
    )
}  # fmt: skip
