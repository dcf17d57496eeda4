"""Kornia: a homography fitted to a pair of images by their structural similarity."""

import torch
from kornia.filters import gaussian_blur2d
from kornia.geometry.transform import warp_perspective
from kornia.losses import ssim_loss
from torch import nn

from tests.world.harness.training import Training, Way, loop

LIBRARIES = ("kornia",)


class Homography(nn.Module):
    def __init__(self):
        super().__init__()
        self.matrix = nn.Parameter(torch.eye(3)[None] + 0.01 * torch.randn(1, 3, 3))

    def forward(self, images):
        return warp_perspective(gaussian_blur2d(images, (3, 3), (1.0, 1.0)), self.matrix, (16, 16))


def make(way: Way) -> Training:
    batches = [(torch.rand(1, 3, 16, 16), torch.rand(1, 3, 16, 16)) for _ in range(2)]
    return loop(way, Homography(), lambda model, x, y: ssim_loss(model(x), y, 5), batches)
