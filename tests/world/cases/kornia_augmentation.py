"""Kornia: random augmentations of images before a small network."""

import torch
from kornia import augmentation
from torch import nn
from torch.nn.functional import cross_entropy

from tests.world.harness.training import Training, Way, loop

LIBRARIES = ("kornia",)


def make(way: Way) -> Training:
    augmented = augmentation.AugmentationSequential(
        augmentation.RandomHorizontalFlip(),
        augmentation.RandomAffine(15.0, p=0.8),
        augmentation.ColorJitter(0.1, 0.1, 0.1, 0.1, p=0.7),
        data_keys=["input"],
    )
    network = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3))
    batches = [(torch.rand(4, 3, 16, 16), torch.randint(0, 3, (4,))) for _ in range(2)]
    return loop(way, nn.Sequential(augmented, network), lambda model, x, y: cross_entropy(model(x), y), batches)
