"""timm: ResNet with batch norm and drop path, SGD with momentum."""

import timm
import torch
from torch.nn.functional import cross_entropy

from tests.world.harness.training import Training, Way, loop

LIBRARIES = ("timm", "torchvision")


def make(way: Way) -> Training:
    model = timm.create_model("resnet10t", num_classes=5, drop_path_rate=0.1, drop_rate=0.1).train()
    batches = [(torch.randn(2, 3, 32, 32), torch.randint(5, (2,))) for _ in range(3)]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, nesterov=True)
    return loop(way, model, lambda model, x, y: cross_entropy(model(x), y), batches, optimizer)
