"""Six programs full of Python, by the libraries as they are, small enough for torch's machinery to be what counts.

    PROGRAMS: name -> (() -> Training)         a Training: step() -> values to compare; what is compared after each step

Each cycles through few batches, so that its streams come again. What the libraries do with data (lengths read, masks that
are indices, norms and losses logged) is all in there.
"""

from __future__ import annotations

import itertools
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn import functional as F


class Training(NamedTuple):
    step: Any  # () -> values
    seen: tuple[Any, ...]  # modules and optimizers
    period: int  # after so many steps the batches come again


def _loop(model, loss, batches, optimizer) -> Training:
    feed = itertools.cycle(batches)

    def step():
        optimizer.zero_grad()
        value = loss(model, *next(feed))
        value.backward()
        optimizer.step()
        return value.detach()

    return Training(step, (model, optimizer), len(batches))


def pyg_gat(num_batches: int = 2) -> Training:
    from torch_geometric.nn import GATConv, global_mean_pool

    class Network(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second, self.third = GATConv(8, 8, heads=2), GATConv(16, 8, heads=2), GATConv(16, 3)

        def forward(self, x, edges, graph):
            x = F.elu(self.first(x, edges))
            x = F.elu(self.second(x, edges))
            return global_mean_pool(self.third(x, edges), graph)

    def graphs(nodes, edges):
        pairs = torch.randint(0, nodes, (2, edges))
        return torch.randn(nodes, 8), pairs, torch.arange(nodes) // 5, torch.randint(0, 3, (nodes // 5,))

    model = Network()
    batches = [graphs(20 + 5 * i, 60 + 10 * i) for i in range(num_batches)]
    return _loop(
        model,
        lambda model, x, edges, graph, y: F.cross_entropy(model(x, edges, graph), y),
        batches,
        torch.optim.Adam(model.parameters(), lr=1e-3),
    )


CUTOFF = 3.0


def _neighbours(positions, molecule):
    distances = torch.cdist(positions.detach(), positions.detach())
    near = (distances < CUTOFF) & ~torch.eye(len(positions), dtype=torch.bool)
    return (near & (molecule[:, None] == molecule)).nonzero().t()


def _pairs_of_molecules(num_batches):
    return [
        (
            torch.randint(1, 9, (atoms,)),
            1.5 * torch.randn(atoms, 3),
            torch.arange(atoms) * 2 // atoms,
            torch.randn(2, 1),
            torch.randn(atoms, 3),
        )
        for atoms in (12, 15, 11, 14)[:num_batches]
    ]


def _energies_and_forces(model, kinds, positions, molecule, energies, forces):
    positions = positions.clone().requires_grad_()
    found = model(kinds, positions, molecule)
    (gradient,) = torch.autograd.grad(found.sum(), positions, create_graph=True)
    return F.mse_loss(found, energies) + F.mse_loss(-gradient, forces)


def pyg_schnet(num_batches: int = 2) -> Training:
    from torch_geometric.nn.models import SchNet

    def interaction_graph(positions, molecule):
        first, second = edges = _neighbours(positions, molecule)
        return edges, (positions[first] - positions[second]).norm(dim=-1)

    sizes = {"hidden_channels": 16, "num_filters": 16, "num_interactions": 3, "num_gaussians": 10}
    model = SchNet(**sizes, cutoff=CUTOFF, interaction_graph=interaction_graph)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    return _loop(model, _energies_and_forces, _pairs_of_molecules(num_batches), optimizer)


def e3nn_forces(num_batches: int = 2) -> Training:
    torch.serialization.add_safe_globals([slice])  # its constants are a file
    import e3nn

    torch._C._set_graph_executor_optimize(False)
    scripts = {"jit_mode": "eager", "jit_script_fx": False}  # scripted functions make autograd's nodes past the dispatcher
    e3nn.set_optimization_defaults(**{k: v for k, v in scripts.items() if k in e3nn.get_optimization_defaults()})
    from e3nn import o3
    from e3nn.math import soft_one_hot_linspace
    from e3nn.nn import FullyConnectedNet

    class Network(nn.Module):
        def __init__(self):
            super().__init__()
            self.harmonics = o3.Irreps.spherical_harmonics(2)
            self.product = o3.FullyConnectedTensorProduct("4x0e", self.harmonics, "4x0e+2x1o", shared_weights=False)
            self.weights = FullyConnectedNet([8, 16, self.product.weight_numel], torch.nn.functional.silu)
            self.embedding, self.out = nn.Embedding(10, 4), o3.Linear("4x0e+2x1o", "1x0e")

        def forward(self, kinds, positions, molecule):
            to, of = _neighbours(positions, molecule)
            vectors = positions[to] - positions[of]
            angles = o3.spherical_harmonics(self.harmonics, vectors, True, normalization="component")
            radial = soft_one_hot_linspace(vectors.norm(dim=1), 0.0, CUTOFF, 8, basis="smooth_finite", cutoff=True)
            messages = self.product(self.embedding(kinds)[to], angles, self.weights(radial))
            atoms = torch.zeros(len(kinds), messages.shape[1]).index_add(0, of, messages)
            return torch.zeros(int(molecule.max()) + 1, 1).index_add(0, molecule, self.out(atoms))

    model = Network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    return _loop(model, _energies_and_forces, _pairs_of_molecules(num_batches), optimizer)


def sb3_ppo(num_batches: int = 1) -> Training:
    import stable_baselines3

    agent = stable_baselines3.PPO(
        "MlpPolicy", "CartPole-v1", n_steps=64, batch_size=32, n_epochs=2, seed=0, device="cpu",
    )  # fmt: skip
    agent.learn(total_timesteps=64)

    def step():
        agent.train()
        return {name: value for name, value in agent.logger.name_to_value.items() if name.startswith("train/")}

    return Training(step, (agent.policy, agent.policy.optimizer), 1)


def adaptive_ode(num_batches: int = 2) -> Training:
    from torchdiffeq import odeint

    class Derivative(nn.Module):
        def __init__(self):
            super().__init__()
            self.network = nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 2))

        def forward(self, t, y):
            return self.network(y**3)

    model = Derivative()
    batches = [(torch.randn(4, 2), torch.linspace(0, 1, 5), torch.randn(5, 4, 2)) for _ in range(num_batches)]

    def loss(model, y, times, wanted):
        return F.l1_loss(odeint(model, y, times, method="dopri5", rtol=1e-3, atol=1e-4), wanted)

    return _loop(model, loss, batches, torch.optim.AdamW(model.parameters(), lr=1e-3))


def trainer(num_batches: int = 2, log_every: int = 10) -> Training:
    import transformers

    config = transformers.LlamaConfig(
        vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, pad_token_id=0,
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 1000))
    batches = []
    for length in (9, 7)[:num_batches]:
        ids = torch.randint(3, 64, (2, length))
        batches.append({"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids.clone()})
    feed, log, counter = itertools.cycle(batches), [], itertools.count(1)

    def step():
        model.train()
        batch = dict(next(feed))
        output = model(**batch)
        output.loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        if next(counter) % log_every == 0:
            log.append((output.loss.item(), norm.item(), scheduler.get_last_lr()[0]))
        return output.loss.detach(), norm

    return Training(step, (model, optimizer), len(batches))


PROGRAMS = {make.__name__: make for make in (pyg_gat, pyg_schnet, e3nn_forces, sb3_ppo, adaptive_ode, trainer)}
