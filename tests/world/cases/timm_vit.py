"""timm: vision transformer with drop path, mixup by timm, its soft-target loss."""

import timm
import torch
from timm.data import Mixup
from timm.loss import SoftTargetCrossEntropy

from tests.world.harness.training import Training, Way, loop

LIBRARIES = ("timm", "torchvision")


def make(way: Way) -> Training:
    model = timm.create_model(
        "vit_tiny_patch16_224",
        **{
            "img_size": 32,
            "patch_size": 8,
            "embed_dim": 32,
            "depth": 2,
            "num_heads": 4,
            "num_classes": 5,
            "drop_path_rate": 0.1,
        },
    ).train()
    mixup, criterion = Mixup(mixup_alpha=0.8, num_classes=5), SoftTargetCrossEntropy()
    batches = [(torch.randn(4, 3, 32, 32), torch.randint(5, (4,))) for _ in range(3)]

    def loss(model, x, y):
        x, soft = mixup(x.clone(), y)
        return criterion(model(x), soft)

    return loop(way, model, loss, batches)
