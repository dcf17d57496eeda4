"""Train one architecture for three steps, eagerly and compiled: are losses, gradients and parameters the same bits?

judge: (Architecture, Compiler, is_autocast, device) -> Verdict
"""

from __future__ import annotations

import contextlib
import dataclasses
from typing import Any

import numpy
import torch

from tests.architectures.models import Architecture
from tests.compilers import Compiler
from tests.oracle import Report, compare

NUM_STEPS = 3
HOST = torch.device("cpu")


@dataclasses.dataclass(frozen=True)
class Verdict:
    """What became of one architecture.

    ``status``: bitwise; differs; raises. ``fallbacks``: what gradc ran eagerly: reason -> how often. ``detail``: the first of
    ``num_differences``.
    """

    name: str
    kind: str
    precision: str
    compiler: str
    status: str
    num_graphs: int
    fallbacks: dict[str, int]
    num_differences: int
    detail: str


def judge(architecture: Architecture, compiler: Compiler, is_autocast: bool, device: torch.device = HOST) -> Verdict:
    """Compare three AdamW steps of ``architecture`` with eager's. ``is_autocast``: bf16 around the forward only."""
    report = train(architecture, compiler, is_autocast, device)
    assert report.eager.error is None, f"{architecture.name} does not train in eager: {report.eager.error}"
    return Verdict(
        architecture.name,
        architecture.kind,
        "bf16 autocast" if is_autocast else "float32",
        compiler.name,
        _status(report),
        report.num_graphs,
        report.fallbacks,
        len(report.differences),
        "; ".join(report.differences[:2]),
    )


def train(architecture: Architecture, compiler: Compiler, is_autocast: bool, device: torch.device = HOST) -> Report:
    """Compared by tests.oracle: losses, the gradients of each step, parameters, buffers, generator state."""

    def step(compile: Compiler, model: torch.nn.Module, batch: dict[str, torch.Tensor]) -> list[Any]:
        numpy.random.seed(0)  # from where Wav2Vec2 draws its masks
        compiled = compile(model)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        seen: list[Any] = []
        for _ in range(NUM_STEPS):
            with torch.autocast(device.type, torch.bfloat16) if is_autocast else contextlib.nullcontext():
                loss = compiled(**batch).loss
            loss.backward()
            seen.append((loss.detach(), {name: _copy(p.grad) for name, p in model.named_parameters()}))
            optimizer.step()
            optimizer.zero_grad()
        return [*seen, dict(model.named_parameters()), dict(model.named_buffers())]

    with device if device != HOST else contextlib.nullcontext():
        return compare(step, architecture.model, architecture.batch, compiler=compiler)


def _copy(grad: torch.Tensor | None) -> torch.Tensor | None:
    return None if grad is None else torch.empty_like(grad).copy_(grad)


def _status(report: Report) -> str:
    if not report.differences:
        return "bitwise"
    return "raises" if report.compiled.error is not None else "differs"
