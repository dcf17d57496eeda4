"""diffusers: a diffusion transformer (SD3) by flow matching, bf16 autocast, EMA of the weights."""

import diffusers
import torch
from diffusers.training_utils import EMAModel, compute_density_for_timestep_sampling
from torch.nn.functional import mse_loss

from tests.world.harness.training import Training, Way, loop

LIBRARIES = ("diffusers",)


def make(way: Way) -> Training:
    model = diffusers.SD3Transformer2DModel(
        sample_size=8,
        patch_size=2,
        in_channels=4,
        num_layers=2,
        attention_head_dim=8,
        num_attention_heads=4,
        joint_attention_dim=32,
        caption_projection_dim=32,
        pooled_projection_dim=16,
        out_channels=4,
        pos_embed_max_size=8,
    ).train()
    average = EMAModel(model.parameters(), decay=0.9)

    def loss(model, latents, prompt, pooled):
        noise = torch.randn_like(latents)
        density = compute_density_for_timestep_sampling("logit_normal", latents.shape[0], 0.0, 1.0, 1.29)
        sigma = density[:, None, None, None]
        out = model(
            hidden_states=(1 - sigma) * latents + sigma * noise,
            timestep=density * 1000,
            encoder_hidden_states=prompt,
            pooled_projections=pooled,
            return_dict=False,
        )[0]
        return mse_loss(out.float(), noise - latents)

    batches = [(torch.randn(2, 4, 8, 8), torch.randn(2, 5, 32), torch.randn(2, 16)) for _ in range(3)]
    training = loop(way, model, loss, batches, context=lambda: torch.autocast("cpu", torch.bfloat16))

    def step():
        result = training.step()
        average.step(model.parameters())
        return result

    return Training(step, (*training.seen, average.shadow_params))
