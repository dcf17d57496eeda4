"""Training with differential privacy, per-sample gradients taken one of opacus' ways."""

import torch
from opacus import PrivacyEngine
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

from tests.world.harness.training import Training, Way, loop


def train(way: Way, mode: str) -> Training:
    network = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 3))
    loader = DataLoader(TensorDataset(torch.randn(24, 1, 8, 8), torch.randint(0, 3, (24,))), batch_size=6)
    model, optimizer, _ = PrivacyEngine(accountant="rdp").make_private(
        module=network,
        optimizer=torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9),
        data_loader=loader,
        noise_multiplier=1.0,
        max_grad_norm=1.0,
        poisson_sampling=False,
        grad_sample_mode=mode,
    )
    batches = [(torch.randn(6, 1, 8, 8), torch.randint(0, 3, (6,))) for _ in range(2)]
    return loop(way, model, lambda model, x, y: cross_entropy(model(x), y), batches, optimizer)
