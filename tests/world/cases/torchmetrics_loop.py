"""torchmetrics: accuracy, F1 and perplexity gathered inside a training loop."""

import torch
import torchmetrics
from torch import nn

from tests.world.harness.training import Training, Way, loop

LIBRARIES = ("torchmetrics",)


def make(way: Way) -> Training:
    model = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Dropout(0.2), nn.Linear(12, 4))
    metrics = torchmetrics.MetricCollection(
        [torchmetrics.classification.MulticlassAccuracy(4), torchmetrics.classification.MulticlassF1Score(4)]
    )

    def loss(model, x, y):
        out = model(x)
        metrics.update(out.detach(), y)
        return nn.functional.cross_entropy(out, y)

    training = loop(way, model, loss, [(torch.randn(7, 6), torch.randint(4, (7,))) for _ in range(3)])
    return Training(lambda: (training.step(), metrics.compute()), training.seen)
