"""A small vision transformer with a float32 loss head, and scikit-learn's handwritten digits.

    load_digits: () -> Digits            VisionTransformer: (images, labels) -> (loss, logits)
"""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gradc.errors import GradcError

NUM_TEST = 360


@dataclasses.dataclass(frozen=True)
class Digits:
    """The data: images float32 [n, 8, 8] in 0..1, labels int64 [n] in 0..9."""

    train_images: Tensor
    train_labels: Tensor
    test_images: Tensor
    test_labels: Tensor


def load_digits() -> Digits:
    """1797 handwritten digits, shuffled by a fixed seed; the last 360 are for the test.

    Raises:
        GradcError: if scikit-learn is not installed.
    """
    try:
        from sklearn import datasets
    except ImportError as error:
        raise GradcError(
            "The demo's digits come with scikit-learn, which is not installed.\n  Run: pip install scikit-learn"
        ) from error
    raw = datasets.load_digits()
    order = torch.randperm(len(raw.target), generator=torch.Generator().manual_seed(0))
    images = torch.tensor(raw.images, dtype=torch.float32)[order] / 16
    labels = torch.tensor(raw.target, dtype=torch.int64)[order]
    return Digits(images[:-NUM_TEST], labels[:-NUM_TEST], images[-NUM_TEST:], labels[-NUM_TEST:])


class Block(nn.Module):
    """Attention and a two-layer network, each behind a layer norm and beside a residual connection."""

    def __init__(self, width: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.project = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.expand, self.contract = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(batch, length, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4)
        x = x + self.project(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(batch, length, width))
        return x + self.contract(F.gelu(self.expand(self.norm2(x))))


class VisionTransformer(nn.Module):
    """Sixteen 2x2 patches of an 8x8 digit, ``depth`` blocks, and a loss head that stays in float32 under autocast.

    The head is what trips ``torch.compile``: its backward runs outside autocast, in float32, but the compiled one was
    decided inside (pytorch#179804).
    """

    def __init__(self, width: int = 64, depth: int = 3, num_heads: int = 4, num_classes: int = 10) -> None:
        super().__init__()
        self.embed = nn.Linear(4, width)
        self.position = nn.Parameter(torch.randn(16, width) * 0.02)
        self.blocks = nn.Sequential(*(Block(width, num_heads) for _ in range(depth)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, num_classes)

    def forward(self, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        patches = images.view(-1, 4, 2, 4, 2).transpose(2, 3).reshape(-1, 16, 4)
        pooled = self.norm(self.blocks(self.embed(patches) + self.position)).mean(1)
        with torch.autocast(images.device.type, enabled=False):
            logits = pooled.float() @ self.head.weight.float().T + self.head.bias
            return F.cross_entropy(logits, labels), logits
