"""diffusers: a U-Net learns to denoise, DDPM."""

import diffusers
import torch
from torch.nn.functional import mse_loss

from tests.world.harness.training import Training, Way, loop

LIBRARIES = ("diffusers",)


def make(way: Way) -> Training:
    model = diffusers.UNet2DModel(
        sample_size=16,
        in_channels=3,
        out_channels=3,
        layers_per_block=1,
        block_out_channels=(16, 32),
        norm_num_groups=8,
        down_block_types=("DownBlock2D", "AttnDownBlock2D"),
        up_block_types=("AttnUpBlock2D", "UpBlock2D"),
        dropout=0.1,
    ).train()
    schedule = diffusers.DDPMScheduler(num_train_timesteps=100)

    def loss(model, images):
        noise, times = torch.randn_like(images), torch.randint(0, 100, (images.shape[0],))
        return mse_loss(model(schedule.add_noise(images, noise, times), times).sample, noise)

    return loop(way, model, loss, [(torch.randn(2, 3, 16, 16),) for _ in range(3)])
