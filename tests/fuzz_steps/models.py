"""Random small models, as text: a class ``Model`` over rows of 4 numbers, small images or words, and a batch for it.

write_model: rng -> Model
"""

from __future__ import annotations

import dataclasses
import random

_ROW_LAYERS = (
    "nn.Linear(4, 4)",
    "nn.Linear(4, 4)",
    "nn.Linear(4, 4, bias=False)",
    "nn.Linear(4, 4).requires_grad_(False)",
    "nn.Tanh()",
    "nn.ReLU(inplace=True)",
    "nn.GELU()",
    "nn.LayerNorm(4)",
    "nn.BatchNorm1d(4)",
    "nn.BatchNorm1d(4, momentum=None)",
    "nn.Dropout(0.3)",
    "nn.PReLU()",
    "Residual(nn.Linear(4, 4))",
    "Twice(nn.Linear(4, 4))",
    "parametrizations.weight_norm(nn.Linear(4, 4))",
    "parametrizations.spectral_norm(nn.Linear(4, 4))",
    "nn.Sequential(nn.Linear(4, 6), nn.SiLU(), nn.Linear(6, 4))",
    "Checkpointed(nn.Linear(4, 4))",
)
_IMAGE_LAYERS = (
    "nn.Conv2d(2, 2, 3, padding=1)",
    "nn.Conv2d(2, 2, 1, bias=False)",
    "nn.Conv2d(2, 2, 3, padding=1).to(memory_format=torch.channels_last)",
    "nn.BatchNorm2d(2)",
    "nn.GroupNorm(1, 2)",
    "nn.ReLU()",
    "nn.Dropout2d(0.4)",
    "Residual(nn.Conv2d(2, 2, 3, padding=1))",
    "nn.AvgPool2d(3, 1, 1)",
)
_FIRST = {
    "rows": (["nn.Linear(4, 4)"],) * 3 + (["nn.Linear(4, 4).requires_grad_(False)"],),
    "images": (["nn.Conv2d(2, 2, 3, padding=1)"],),
    "words": (["nn.Embedding(7, 4)"], ["nn.Embedding(7, 4, padding_idx=0)"], ["nn.Embedding(7, 4, max_norm=1.0)"]),
}
_LAST = {"rows": [], "images": ["nn.AdaptiveAvgPool2d(2)", "nn.Flatten()", "nn.Linear(8, 4)"], "words": []}
_BATCHES = {
    "rows": ("torch.randn({n}, 4)", "torch.randn({n}, 4)", "torch.randn({n}, 4, requires_grad=True)"),
    "images": ("torch.randn({n}, 2, 3, 3)",),
    "words": ("torch.randint(7, ({n},))",),
}
_HEAD = """
class Residual(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return x + self.inner(x)


class Twice(Residual):
    def forward(self, x):
        return self.inner(self.inner(x).tanh())


class Checkpointed(Residual):
    def forward(self, x):
        return checkpoint(self.inner, x, use_reentrant=False)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(1.5))
        self.extra = nn.Parameter(torch.linspace(-1, 1, 4))
        self.layers = nn.Sequential($layers)

    def forward(self, x):
        return self.layers(x) * self.scale + self.extra"""


@dataclasses.dataclass(frozen=True)
class Model:
    """``text``: of the class, and ``MODEL``. ``batch``: an expression with a place ``{n}`` for the number of examples."""

    text: str
    batch: str
    is_real: bool


def write_model(rng: random.Random) -> Model:
    kind = rng.choice(("rows", "rows", "rows", "images", "words"))
    inner = _IMAGE_LAYERS if kind == "images" else _ROW_LAYERS
    layers = [*rng.choice(_FIRST[kind]), *rng.choices(inner, k=rng.choice((0, 1, 1, 2, 2, 3))), *_LAST[kind]]
    if kind == "words" and len(layers) > 1 and layers[1].startswith("nn.ReLU"):
        layers.insert(1, "nn.Linear(4, 4)")  # an embedding's output takes no inplace op where max_norm is another
    is_double = rng.random() < 0.2
    made = ["", "", f"MODEL = Model(){'.double()' * is_double}"]
    batch = rng.choice(_BATCHES[kind])
    if is_double and kind != "words":
        batch = f"{batch}.double()" if "requires_grad" not in batch else batch.replace(")", ", dtype=torch.float64)")
    if rng.random() < 0.15:
        made.append("MODEL.layers[0].bias = None" if kind != "words" else "MODEL.extra.requires_grad_(False)")
    return Model(_HEAD.replace("$layers", ", ".join(layers)) + "\n".join(made), batch, kind != "words")
