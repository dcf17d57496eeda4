"""lightning: Trainer.fit, two epochs a step, a scheduler and clipped gradients."""

import lightning
import torch
from torch import nn

from tests.world.harness.training import Training, Way

LIBRARIES = ("lightning",)


class Classifier(lightning.LightningModule):
    def __init__(self, way: Way, model: nn.Module):
        super().__init__()
        self.model = model
        self.compiled = [way.model(model)]  # in a list: no second name for the same parameters
        self.seen: list = []

    def training_step(self, batch, index):
        x, y = batch
        loss = nn.functional.cross_entropy(self.compiled[0](x), y)
        self.log("loss", loss)
        return loss

    def on_before_optimizer_step(self, optimizer):
        self.seen.append([p.grad.clone() for p in self.model.parameters()])

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2)
        return [optimizer], [torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=10)]


def make(way: Way) -> Training:
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Dropout(0.1), nn.Linear(144, 3))
    module = Classifier(way, model)
    module.training_step = way.step(module.training_step)
    loader = torch.utils.data.DataLoader(
        [(torch.randn(1, 8, 8), torch.randint(3, ())) for _ in range(6)], batch_size=3, shuffle=True
    )

    def step():
        module.seen.clear()
        trainer = lightning.Trainer(
            max_epochs=2,
            accelerator="cpu",
            gradient_clip_val=1.0,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        trainer.fit(module, loader)
        return trainer.callback_metrics["loss"], list(module.seen), trainer.optimizers

    return Training(step, (model,))
