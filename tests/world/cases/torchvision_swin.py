"""torchvision: Swin transformer with stochastic depth, transforms of its own on each batch."""

import torch
import torchvision
from torch.nn.functional import cross_entropy
from torchvision.transforms import v2

from tests.world.harness.training import Training, Way, loop

LIBRARIES = ("torchvision",)


def make(way: Way) -> Training:
    model = torchvision.models.SwinTransformer(
        patch_size=[4, 4],
        embed_dim=16,
        depths=[2, 2],
        num_heads=[2, 4],
        window_size=[4, 4],
        stochastic_depth_prob=0.2,
        num_classes=5,
    ).train()
    augment = v2.Compose([v2.RandomHorizontalFlip(), v2.RandomErasing(p=0.5), v2.Normalize([0.5] * 3, [0.2] * 3)])
    batches = [(torch.rand(2, 3, 32, 32), torch.randint(5, (2,))) for _ in range(3)]
    return loop(way, model, lambda model, x, y: cross_entropy(model(augment(x)), y, label_smoothing=0.1), batches)
