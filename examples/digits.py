"""A convolutional network that learns scikit-learn's handwritten digits, with batch norm, dropout, and a schedule of the rate.

Run it: python examples/digits.py [--short] [--out FOLDER]. Without its columns of times, it printed

    run            final loss  bitwise eager  largest param diff
    -------------  ----------  -------------  ------------------
    eager            0.357143            yes                   0
    torch.compile    0.371702             no             7.6e-02
    gradc            0.357143            yes                   0
    gradc ran eagerly: nothing
"""

from __future__ import annotations

import torch
from _side_by_side import main
from sklearn.datasets import load_digits
from torch import Tensor, nn

BATCH = 64


def build(compile):
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32)[:, None] / 16
    labels = torch.tensor(digits.target)
    model = nn.Sequential(
        nn.Sequential(nn.Conv2d(1, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU()),
        nn.Sequential(nn.Conv2d(32, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(2)),
        nn.Sequential(nn.Flatten(), nn.Dropout(0.25), nn.Linear(64 * 16, 10)),
    )
    classify = compile(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, nesterov=True)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 150)
    loss_of = nn.CrossEntropyLoss(label_smoothing=0.05)

    def step(number: int) -> Tensor:
        chosen = torch.randint(len(images), (BATCH,))
        optimizer.zero_grad()
        loss = loss_of(classify(images[chosen]), labels[chosen])
        loss.backward()
        optimizer.step()
        schedule.step()
        return loss

    return step, list(model.parameters())


if __name__ == "__main__":
    main(build, steps=150, short_steps=6)
