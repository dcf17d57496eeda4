"""Training steps as papers and tutorials write them, compiled whole: after several steps all is eager's."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.compilers import find
from tests.oracle import check

NUM_STEPS = 4
Step = Callable[..., Any]
Recipe = Callable[[Callable[..., Any]], tuple[Step, Callable[[int], tuple[Any, ...]], dict[str, Any]]]
"""compile -> the step, its arguments by number, and what it changes."""


def net(*sizes: int, act: type[nn.Module] = nn.Tanh) -> nn.Sequential:
    layers: list[nn.Module] = []
    for one, next_ in itertools.pairwise(sizes):
        layers += [nn.Linear(one, next_), act()]
    return nn.Sequential(*layers[:-1])


def rows(*shape: int) -> Callable[[int], tuple[Tensor, ...]]:
    return lambda number: (torch.randn(*shape),)


def gradient_penalty(compile: Any) -> Any:
    """Wasserstein GAN: the critic's gradients along lines between true and made examples are to have norm 1."""
    critic, maker = net(3, 8, 1), net(2, 8, 3)
    of_critic, of_maker = torch.optim.Adam(critic.parameters(), betas=(0.5, 0.9)), torch.optim.Adam(maker.parameters())

    @compile
    def step(x: Tensor) -> Any:
        for _ in range(2):
            of_critic.zero_grad()
            made = maker(torch.randn(len(x), 2)).detach()
            where = torch.rand(len(x), 1)
            between = (where * x + (1 - where) * made).requires_grad_(True)
            score = critic(between)
            (slope,) = torch.autograd.grad(score, between, torch.ones_like(score), create_graph=True, retain_graph=True)
            penalty = ((slope.norm(2, dim=1) - 1) ** 2).mean()
            loss = critic(made).mean() - critic(x).mean() + 10 * penalty
            loss.backward()
            of_critic.step()
        of_maker.zero_grad()
        (-critic(maker(torch.randn(len(x), 2))).mean()).backward()
        of_maker.step()
        return loss.detach(), penalty.item()

    return step, rows(4, 3), {"critic": critic, "maker": maker, "optimizers": (of_critic, of_maker)}


def frozen_in_turn(compile: Any) -> Any:
    """A GAN whose critic is frozen while the maker learns."""
    critic, maker = net(3, 8, 1, act=nn.LeakyReLU), net(2, 8, 3)
    of_critic, of_maker = torch.optim.SGD(critic.parameters(), 0.1), torch.optim.SGD(maker.parameters(), 0.1)

    @compile
    def step(x: Tensor) -> Any:
        made = maker(torch.randn(len(x), 2))
        for p in critic.parameters():
            p.requires_grad = True
        of_critic.zero_grad()
        true, false = critic(x), critic(made.detach())
        loss = F.binary_cross_entropy_with_logits(true, torch.ones_like(true))
        loss = loss + F.binary_cross_entropy_with_logits(false, torch.zeros_like(false))
        loss.backward()
        of_critic.step()
        for p in critic.parameters():
            p.requires_grad = False
        of_maker.zero_grad()
        false = critic(made)
        F.binary_cross_entropy_with_logits(false, torch.ones_like(false)).backward()
        of_maker.step()
        return loss.detach()

    return step, rows(4, 3), {"critic": critic, "maker": maker}


def by_hand(compile: Any) -> Any:
    """Gradient descent without an optimizer."""
    weights = [torch.randn(3, 4, requires_grad=True), torch.randn(4, 1, requires_grad=True)]

    @compile
    def step(x: Tensor) -> Any:
        loss = ((x @ weights[0]).clamp(min=0) @ weights[1]).square().sum()
        loss.backward()
        with torch.no_grad():
            for w in weights:
                w -= 1e-2 * w.grad
                w.grad = None
        return loss.item()

    return step, rows(4, 3), {"weights": weights}


def by_hand_on_data(compile: Any) -> Any:
    weights = [torch.randn(3, 4, requires_grad=True), torch.randn(4, 1, requires_grad=True)]

    @compile
    def step(x: Tensor) -> Any:
        loss = ((x @ weights[0]).tanh() @ weights[1]).square().sum()
        loss.backward()
        for w in weights:
            w.data.sub_(1e-2 * w.grad.data)
            w.grad.data.zero_()
        return loss.item()

    return step, rows(4, 3), {"weights": weights}


def inner_loop(compile: Any) -> Any:
    """MAML: the loss of weights that are a gradient step away."""
    model = net(3, 6, 1)
    optimizer = torch.optim.Adam(model.parameters(), 0.01)

    @compile
    def step(x: Tensor, y: Tensor) -> Any:
        optimizer.zero_grad()
        fast = dict(model.named_parameters())
        for _ in range(2):
            loss = (torch.func.functional_call(model, fast, (x,)) - y).square().mean()
            grads = torch.autograd.grad(loss, list(fast.values()), create_graph=True)
            fast = {name: p - 0.1 * grad for (name, p), grad in zip(fast.items(), grads)}
        outer = (torch.func.functional_call(model, fast, (x + 1,)) - y).square().mean()
        outer.backward()
        optimizer.step()
        return outer.detach()

    return step, lambda number: (torch.randn(5, 3), torch.randn(5, 1)), {"model": model, "optimizer": optimizer}


def first_order_inner_loop(compile: Any) -> Any:
    """Reptile: a copy learns, and the model moves towards it."""
    model = net(3, 6, 1)

    @compile
    def step(x: Tensor, y: Tensor) -> Any:
        before = copy.deepcopy(model.state_dict())
        for _ in range(2):
            loss = (model(x) - y).square().mean()
            model.zero_grad()
            loss.backward()
            for p in model.parameters():
                p.data -= 0.1 * p.grad.data
        after = model.state_dict()
        model.load_state_dict({name: before[name] + 0.5 * (after[name] - before[name]) for name in before})
        return loss.detach()

    return step, lambda number: (torch.randn(5, 3), torch.randn(5, 1)), {"model": model}


def sharpness(compile: Any) -> Any:
    """SAM: the gradient at the worst point near by."""
    model = net(3, 6, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)

    @compile
    def step(x: Tensor) -> Any:
        loss = model(x).square().mean()
        loss.backward()
        with torch.no_grad():
            norm = torch.norm(torch.stack([p.grad.norm(p=2) for p in model.parameters()]), p=2)
            moves = []
            for p in model.parameters():
                move = p.grad * (0.05 / (norm + 1e-12))
                p.add_(move)
                moves.append(move)
        optimizer.zero_grad()
        model(x).square().mean().backward()
        with torch.no_grad():
            for p, move in zip(model.parameters(), moves):
                p.sub_(move)
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return step, rows(4, 3), {"model": model, "optimizer": optimizer}


def adversarial(compile: Any) -> Any:
    """PGD: examples are moved against the model before it learns from them."""
    model = net(3, 6, 4)
    optimizer = torch.optim.Adam(model.parameters())

    @compile
    def step(x: Tensor, y: Tensor) -> Any:
        moved = x.detach() + torch.empty_like(x).uniform_(-0.1, 0.1)
        for _ in range(2):
            moved.requires_grad_()
            with torch.enable_grad():
                loss = F.cross_entropy(model(moved), y)
            (slope,) = torch.autograd.grad(loss, [moved])
            moved = moved.detach() + 0.02 * torch.sign(slope.detach())
            moved = torch.min(torch.max(moved, x - 0.1), x + 0.1)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(moved), y)
        loss.backward()
        optimizer.step()
        return loss.detach(), moved

    return step, lambda number: (torch.randn(5, 3), torch.randint(4, (5,))), {"model": model, "optimizer": optimizer}


def fast_sign(compile: Any) -> Any:
    """FGSM: the input's own ``grad``."""
    model = net(3, 6, 4)

    @compile
    def step(x: Tensor, y: Tensor) -> Any:
        x = x.clone().detach()
        x.requires_grad = True
        loss = F.cross_entropy(model(x), y)
        model.zero_grad()
        loss.backward()
        return torch.clamp(x + 0.1 * x.grad.data.sign(), -1, 1), loss.detach()

    return step, lambda number: (torch.randn(5, 3), torch.randint(4, (5,))), {"model": model}


def dream(compile: Any) -> Any:
    """The input learns; the weights are frozen."""
    model = net(3, 6, 4).requires_grad_(False)
    image = torch.randn(2, 3, requires_grad=True)
    optimizer = torch.optim.Adam([image], 0.1)

    @compile
    def step(scale: float) -> Any:
        optimizer.zero_grad()
        with torch.no_grad():
            image.clamp_(-1, 1)
        loss = -model(image)[:, 1].mean() + scale * image.diff().abs().mean()
        loss.backward()
        optimizer.step()
        return loss.item()

    return step, lambda number: (0.5 * number,), {"image": image, "optimizer": optimizer}


def averages(compile: Any) -> Any:
    """BYOL: a second network is the average of the first, and its target."""
    online, head = net(3, 6, 4), net(4, 4)
    target = copy.deepcopy(online)
    for p in target.parameters():
        p.requires_grad = False
    optimizer = torch.optim.SGD([*online.parameters(), *head.parameters()], 0.1)

    @compile
    def step(x: Tensor, y: Tensor) -> Any:
        with torch.no_grad():
            wanted = target(y).detach()
        loss = (2 - 2 * F.cosine_similarity(head(online(x)), wanted, dim=-1)).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        for mean, p in zip(target.parameters(), online.parameters()):
            mean.data = mean.data * 0.99 + p.data * 0.01
        return loss.detach()

    return step, lambda number: (torch.randn(5, 3), torch.randn(5, 3)), {"online": online, "head": head, "target": target}


def queue(compile: Any) -> Any:
    """MoCo: keys of earlier batches wait in a queue."""
    model = net(3, 6, 4)
    keys, place = F.normalize(torch.randn(4, 12), dim=0), torch.zeros(1, dtype=torch.long)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    @compile
    def step(x: Tensor) -> Any:
        query = F.normalize(model(x), dim=1)
        with torch.no_grad():
            key = F.normalize(model(x + 0.1), dim=1)
        near = torch.einsum("nc,nc->n", [query, key]).unsqueeze(-1)
        far = torch.einsum("nc,ck->nk", [query, keys.clone().detach()])
        logits = torch.cat([near, far], dim=1) / 0.07
        loss = F.cross_entropy(logits, torch.zeros(len(x), dtype=torch.long))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        at = int(place)
        keys[:, at : at + len(x)] = key.T
        place[0] = (at + len(x)) % 12
        return loss.detach()

    return step, rows(3, 3), {"model": model, "keys": keys, "place": place}


def temporal_difference(compile: Any) -> Any:
    """DQN: a frozen copy tells what the next state is worth, and is replaced now and then."""
    model = net(3, 6, 2)
    target = copy.deepcopy(model)
    optimizer, state = torch.optim.RMSprop(model.parameters(), 0.01), {"number": 0}

    @compile
    def step(x: Tensor, action: Tensor, reward: Tensor, after: Tensor) -> Any:
        worth = model(x).gather(1, action)
        with torch.no_grad():
            wanted = reward + 0.9 * target(after).max(1, keepdim=True)[0]
        loss = F.smooth_l1_loss(worth, wanted)
        optimizer.zero_grad()
        loss.backward()
        for p in model.parameters():
            p.grad.data.clamp_(-1, 1)
        optimizer.step()
        state["number"] += 1
        if state["number"] % 2 == 0:
            target.load_state_dict(model.state_dict())
        return loss.detach()

    def batch(number: int) -> tuple[Tensor, ...]:
        return torch.randn(5, 3), torch.randint(2, (5, 1)), torch.randn(5, 1), torch.randn(5, 3)

    return step, batch, {"model": model, "target": target, "state": state}


def actor_and_critic(compile: Any) -> Any:
    """DDPG: the actor climbs the critic."""
    actor, critic = net(3, 6, 2), net(5, 6, 1)
    targets = copy.deepcopy(actor), copy.deepcopy(critic)
    of_actor, of_critic = torch.optim.Adam(actor.parameters()), torch.optim.Adam(critic.parameters())

    @compile
    def step(x: Tensor, action: Tensor, reward: Tensor, after: Tensor) -> Any:
        worth = targets[1](torch.cat([after, targets[0](after)], 1))
        worth = reward + (0.9 * worth).detach()
        loss = F.mse_loss(critic(torch.cat([x, action], 1)), worth)
        of_critic.zero_grad()
        loss.backward()
        of_critic.step()
        climb = -critic(torch.cat([x, actor(x)], 1)).mean()
        of_actor.zero_grad()
        climb.backward()
        of_actor.step()
        for one, target in zip((actor, critic), targets):
            for p, kept in zip(one.parameters(), target.parameters()):
                kept.data.copy_(0.1 * p.data + 0.9 * kept.data)
        return loss.detach(), climb.detach()

    def batch(number: int) -> tuple[Tensor, ...]:
        return torch.randn(5, 3), torch.randn(5, 2), torch.randn(5, 1), torch.randn(5, 3)

    return step, batch, {"actor": actor, "critic": critic, "targets": targets}


def truncated(compile: Any) -> Any:
    """Backpropagation through time, cut off after each chunk."""
    cell, head = nn.LSTMCell(3, 4), nn.Linear(4, 1)
    optimizer = torch.optim.Adam([*cell.parameters(), *head.parameters()])

    @compile
    def step(x: Tensor) -> Any:
        h, c = torch.zeros(2, 4), torch.zeros(2, 4)
        total = 0.0
        for part in x.chunk(2):
            h, c = h.detach(), c.detach()
            loss = torch.zeros(())
            for one in part:
                h, c = cell(one, (h, c))
                loss = loss + head(h).square().mean()
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(cell.parameters(), 0.25)
            optimizer.step()
            total += loss.item()
        return total

    return step, rows(4, 2, 3), {"cell": cell, "head": head}


def score(compile: Any) -> Any:
    """Sliced score matching: a trace of second derivatives, by random directions."""
    model = net(3, 8, 3, act=nn.Softplus)
    optimizer = torch.optim.Adam(model.parameters())

    @compile
    def step(x: Tensor) -> Any:
        x = x.requires_grad_(True)
        direction = torch.randn_like(x)
        found = model(x)
        along = torch.sum(found * direction)
        (slope,) = torch.autograd.grad(along, x, create_graph=True)
        loss = (0.5 * torch.sum(direction * found, dim=-1) ** 2 + torch.sum(direction * slope, dim=-1)).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step, rows(4, 3), {"model": model, "optimizer": optimizer}


def energy(compile: Any) -> Any:
    """Langevin dynamics: examples are made by descending the model's own energy."""
    model = net(3, 8, 1, act=nn.SiLU)
    optimizer = torch.optim.Adam(model.parameters())

    @compile
    def step(x: Tensor) -> Any:
        made = torch.randn_like(x)
        made.requires_grad = True
        for p in model.parameters():
            p.requires_grad = False
        for _ in range(2):
            made.data.add_(torch.randn_like(made) * 0.01)
            model(made).sum().backward()
            made.grad.data.clamp_(-0.03, 0.03)
            made.data.add_(-0.1 * made.grad.data)
            made.grad.detach_()
            made.grad.zero_()
        for p in model.parameters():
            p.requires_grad = True
        made = made.detach()
        optimizer.zero_grad()
        loss = model(x).mean() - model(made).mean() + 0.1 * (model(x) ** 2 + model(made) ** 2).mean()
        loss.backward()
        optimizer.step()
        return loss.detach(), made

    return step, rows(4, 3), {"model": model}


def hamiltonian(compile: Any) -> Any:
    """Motion is the gradient of a learned energy."""
    model = net(2, 8, 1)
    optimizer = torch.optim.Adam(model.parameters())

    @compile
    def step(x: Tensor, y: Tensor) -> Any:
        x = x.clone().requires_grad_()
        (slope,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
        motion = torch.stack([slope[:, 1], -slope[:, 0]], 1)
        loss = (motion - y).square().mean()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step, lambda number: (torch.randn(4, 2), torch.randn(4, 2)), {"model": model, "optimizer": optimizer}


def curvature(compile: Any) -> Any:
    """Conjugate gradients on products with the Hessian, and a line search."""
    model = net(3, 4, 1)
    parameters = list(model.parameters())

    @compile
    def step(x: Tensor) -> Any:
        loss = model(x).square().mean()
        grads = torch.autograd.grad(loss, parameters, create_graph=True)
        flat = torch.cat([grad.reshape(-1) for grad in grads])
        residual, direction = -flat.detach().clone(), -flat.detach().clone()
        found = torch.zeros_like(residual)
        for _ in range(3):
            product = torch.cat([p.reshape(-1) for p in torch.autograd.grad(flat @ direction, parameters, retain_graph=True)])
            product = product + 0.1 * direction
            alpha = residual @ residual / (direction @ product)
            found = found + alpha * direction
            new = residual - alpha * product
            direction = new + (new @ new) / (residual @ residual) * direction
            residual = new
        torch.nn.utils.vector_to_parameters(torch.nn.utils.parameters_to_vector(parameters) + found, parameters)
        return loss.detach(), found

    return step, rows(4, 3), {"model": model}


class Reversed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: float) -> Tensor:
        ctx.scale = scale
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return grad.neg() * ctx.scale, None


def domains(compile: Any) -> Any:
    """Features that a second head cannot tell apart: its gradient is reversed, more and more."""
    features, labels, domain = net(3, 6, 4), net(4, 2), net(4, 1)
    optimizer = torch.optim.SGD([*features.parameters(), *labels.parameters(), *domain.parameters()], 0.1)

    @compile
    def step(x: Tensor, y: Tensor, scale: float) -> Any:
        found = features(x)
        loss = F.cross_entropy(labels(found), y)
        where = domain(Reversed.apply(found, scale))
        loss = loss + F.binary_cross_entropy_with_logits(where, torch.ones_like(where))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    def batch(number: int) -> tuple[Any, ...]:
        return torch.randn(5, 3), torch.randint(2, (5,)), 0.1 * number

    return step, batch, {"features": features, "labels": labels, "domain": domain}


def straight_through(compile: Any) -> Any:
    """VQ-VAE: the nearest code, with the gradient of what it replaces; codes are averages, kept as buffers."""
    encoder, decoder = net(3, 6, 2), net(2, 6, 3)
    codes, counts, sums = torch.randn(5, 2), torch.ones(5), torch.zeros(5, 2)
    optimizer = torch.optim.Adam([*encoder.parameters(), *decoder.parameters()])

    @compile
    def step(x: Tensor) -> Any:
        found = encoder(x)
        apart = found.pow(2).sum(1, keepdim=True) - 2 * found @ codes.t() + codes.pow(2).sum(1)
        nearest = apart.argmin(1)
        one_hot = F.one_hot(nearest, 5).type(found.dtype)
        code = F.embedding(nearest, codes)
        with torch.no_grad():
            counts.mul_(0.9).add_(one_hot.sum(0), alpha=0.1)
            sums.mul_(0.9).add_(one_hot.t() @ found, alpha=0.1)
            codes.copy_(sums / counts.clamp(min=1e-5).unsqueeze(1))
        loss = (code.detach() - found).pow(2).mean()
        code = found + (code - found).detach()
        loss = loss + F.mse_loss(decoder(code), x)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach(), nearest

    return step, rows(6, 3), {"encoder": encoder, "decoder": decoder, "codes": codes, "counts": counts}


def distilled(compile: Any) -> Any:
    """A teacher in evaluation mode, a student in training mode, under autocast with a scaler and accumulated gradients."""
    teacher, student = nn.Sequential(net(3, 6, 4), nn.BatchNorm1d(4)).eval(), nn.Sequential(net(3, 6, 4), nn.Dropout(0.2))
    optimizer, scaler = torch.optim.AdamW(student.parameters(), 0.01), torch.amp.GradScaler("cpu", init_scale=8.0)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=NUM_STEPS + 1)

    @compile
    def step(x: Tensor) -> Any:
        losses = []
        for part in x.split(3):
            with torch.autocast("cpu", torch.bfloat16):
                with torch.no_grad():
                    wanted = teacher(part)
                found = student(part)
                loss = F.kl_div(F.log_softmax(found / 2, 1), F.softmax(wanted / 2, 1), reduction="batchmean") * 4 / 2
            scaler.scale(loss).backward()
            losses.append(loss.detach())
        scaler.unscale_(optimizer)
        norm = torch.nn.utils.clip_grad_norm_(student.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)
        scheduler.step()
        return torch.stack(losses).mean(), norm, scaler.get_scale(), scheduler.get_last_lr()

    return step, rows(6, 3), {"teacher": teacher, "student": student, "optimizer": optimizer}


def fisher(compile: Any) -> Any:
    """Elastic weight consolidation: squared gradients of single examples weigh how far weights may move."""
    model = net(3, 4, 2)
    means = {name: p.detach().clone() for name, p in model.named_parameters()}
    weights = {name: torch.zeros_like(p) for name, p in model.named_parameters()}
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    @compile
    def step(x: Tensor, y: Tensor) -> Any:
        for one, label in zip(x, y):
            model.zero_grad()
            F.nll_loss(F.log_softmax(model(one[None]), 1), label[None]).backward()
            for name, p in model.named_parameters():
                weights[name] += p.grad.data.pow(2) / len(x)
        loss = F.cross_entropy(model(x), y)
        for name, p in model.named_parameters():
            loss = loss + (weights[name] * (p - means[name]).pow(2)).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step, lambda number: (torch.randn(3, 3), torch.randint(2, (3,))), {"model": model, "weights": weights}


def per_example(compile: Any) -> Any:
    """Clipped gradients of single examples, by vmap, with noise: differential privacy."""
    model = net(3, 4, 1)

    @compile
    def step(x: Tensor) -> Any:
        parameters = {name: p.detach() for name, p in model.named_parameters()}
        loss = lambda parameters, one: torch.func.functional_call(model, parameters, (one[None],)).square().sum()
        grads = torch.func.vmap(torch.func.grad(loss), (None, 0))(parameters, x)
        norms = torch.stack([grad.flatten(1).norm(dim=1) for grad in grads.values()]).norm(dim=0)
        factors = (1 / (norms + 1e-6)).clamp(max=1.0)
        with torch.no_grad():
            for name, p in model.named_parameters():
                grad = torch.einsum("n,n...->...", factors, grads[name])
                p.add_((grad + 0.1 * torch.randn_like(grad)) / len(x), alpha=-0.1)
        return norms

    return step, rows(4, 3), {"model": model}


def uncertain(compile: Any) -> Any:
    """Weights of several losses are learned, too; gradients of two tasks are projected where they are at odds (PCGrad)."""
    model, weights = net(3, 6, 2), torch.zeros(2, requires_grad=True)
    parameters = [*model.parameters(), weights]
    optimizer = torch.optim.Adam([{"params": model.parameters()}, {"params": [weights], "lr": 0.1}])

    @compile
    def step(x: Tensor) -> Any:
        out = model(x)
        losses = out.square().mean(0) * torch.exp(-weights) + weights
        grads = []
        for loss in losses:
            optimizer.zero_grad()
            loss.backward(retain_graph=True)
            grads.append([None if p.grad is None else p.grad.clone() for p in parameters])
        optimizer.zero_grad()
        for p, one, other in zip(parameters, *grads):
            dot = (one * other).sum()
            p.grad = one + other if dot >= 0 else one - dot / (other.norm() ** 2 + 1e-12) * other + other
        optimizer.step()
        return losses.detach()

    return step, rows(4, 3), {"model": model, "weights": weights, "optimizer": optimizer}


def evolved(compile: Any) -> Any:
    """Evolution strategies: no gradient at all, antithetic noise and a seed that is set inside."""
    model = net(3, 4, 1)

    @compile
    def step(x: Tensor) -> Any:
        with torch.no_grad():
            for sign in (1, -2, 1):
                torch.manual_seed(7)
                for p in model.parameters():
                    p.add_(torch.randn_like(p), alpha=0.01 * sign)
                loss = model(x).square().mean()
        return loss

    return step, rows(4, 3), {"model": model}


def fixed_point(compile: Any) -> Any:
    """Implicit layer: a fixed point without a graph, and its gradient by a hook."""
    cell, head = nn.Linear(4, 4), nn.Linear(4, 1)
    with torch.no_grad():
        cell.weight.mul_(0.3)
    optimizer = torch.optim.SGD([*cell.parameters(), *head.parameters()], 0.1)

    @compile
    def step(x: Tensor) -> Any:
        with torch.no_grad():
            z = torch.zeros_like(x)
            for _ in range(5):
                z = torch.tanh(cell(z) + x)
        z = torch.tanh(cell(z) + x)
        inner = z.clone().detach().requires_grad_()
        again = torch.tanh(cell(inner) + x)

        def solve(grad: Tensor) -> Tensor:
            total = grad
            for _ in range(4):
                total = torch.autograd.grad(again, inner, total, retain_graph=True)[0] + grad
            return total

        if z.requires_grad:
            z.register_hook(solve)
        loss = head(z).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step, rows(3, 4), {"cell": cell, "head": head}


RECIPES: list[Recipe] = [
    gradient_penalty, frozen_in_turn, by_hand, by_hand_on_data, inner_loop, first_order_inner_loop, sharpness, adversarial,
    fast_sign, dream, averages, queue, temporal_difference, actor_and_critic, truncated, score, energy, hamiltonian, curvature,
    domains, straight_through, distilled, fisher, per_example, uncertain, evolved, fixed_point,
]  # fmt: skip


@pytest.mark.parametrize("compiler", ["gradc", "captured", "gradc_captured"])
@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.__name__)
def test_recipe(recipe: Recipe, compiler: str) -> None:
    def run(compile: Any) -> Any:
        torch.manual_seed(0)
        step, arguments, changed = recipe(compile)
        results = []
        for number in range(NUM_STEPS):
            torch.manual_seed(number)
            given = arguments(number)
            results.append((step(*given), torch.rand(1)))
        return results, _described(changed)

    check(run, compiler=find(compiler), allow_fallback=True)


def _described(changed: Any) -> Any:
    """What a step may have changed, as containers of tensors and numbers."""
    if isinstance(changed, nn.Module):
        parameters = [(p, p.grad, p.requires_grad) for p in changed.parameters()]
        return parameters, dict(changed.named_buffers())
    if isinstance(changed, torch.optim.Optimizer):
        return changed.state_dict()
    if isinstance(changed, Tensor):
        return changed, changed.grad
    if isinstance(changed, dict):
        return {name: _described(value) for name, value in changed.items()}
    return [_described(value) for value in changed] if isinstance(changed, (list, tuple)) else changed
