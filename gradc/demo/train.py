"""Train the demo's model once, and keep what the comparison needs.

    train: (compile function, epochs, the eager Run or None) -> Run

Every run starts from the same seed and sees the same batches, so that each difference comes from the compiler.
"""

from __future__ import annotations

import dataclasses
import itertools
import statistics
import sys
import time
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn
from tqdm import tqdm

from gradc.bits import same_bits
from gradc.demo.vit import Digits, VisionTransformer

BATCH_SIZE = 128
LEARNING_RATE = 2e-3

Step = Callable[[Tensor, Tensor], Tensor]  # (images, labels) -> the loss
Compile = Callable[[Step], Step]


@dataclasses.dataclass(frozen=True)
class Run:
    """One training run. Lists have one entry per step.

    Attributes:
        gradients: of every parameter, as backward left them; kept for the reference run only, else empty.
        differences: largest absolute difference of any gradient entry from the reference run's.
        nodes: the name of the autograd node that each loss hung on.
        is_compiled: most losses hung on none of eager's; gradc makes a dozen steps eagerly, to see whether compiling pays.
            Else equality with eager would say nothing.
        bitwise: every loss, gradient and final parameter is the reference run's, bit for bit.
        compile_seconds: how much longer the first step took than the median one.
    """

    name: str
    losses: list[float]
    accuracy: float
    parameters: list[Tensor]
    gradients: list[list[Tensor]]
    differences: list[float]
    parameter_difference: float
    nodes: list[str]
    is_compiled: bool
    bitwise: bool
    compile_seconds: float
    step_ms: float


def num_steps(digits: Digits, epochs: int) -> int:
    return epochs * (len(digits.train_labels) // BATCH_SIZE)


def seconds_per_step(digits: Digits, num_timed: int = 3) -> float:
    """The median time of a few eager steps, after a first one that is not counted."""
    step = step_of(VisionTransformer())
    seconds = []
    for images, labels in itertools.islice(batches(digits, 1), 1 + num_timed):
        start = time.perf_counter()
        step(images, labels)
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds[1:])


def train(name: str, compile: Compile, digits: Digits, epochs: int, reference: Run | None) -> Run:
    """Train for ``epochs`` and compare with ``reference`` as it goes (None: this is the reference run)."""
    torch.manual_seed(0)
    model = VisionTransformer()
    step = compile(step_of(model))
    losses: list[float] = []
    seconds: list[float] = []
    gradients: list[list[Tensor]] = []
    differences: list[float] = []
    nodes: list[str] = []
    is_quiet = not sys.stderr.isatty()
    with tqdm(batches(digits, epochs), name, num_steps(digits, epochs), unit="step", mininterval=0.5, disable=is_quiet) as bar:
        for images, labels in bar:
            start = time.perf_counter()
            loss = step(images, labels)
            seconds.append(time.perf_counter() - start)
            losses.append(loss.item())
            nodes.append(loss.grad_fn.name() if loss.grad_fn is not None else "none")
            now = gradients_of(model)
            if reference is None:
                gradients.append(now)
            expected = now if reference is None else reference.gradients[len(differences)]
            differences.append(largest_difference(now, expected))
            bar.set_postfix_str(f"loss {losses[-1]:.3f}", refresh=False)
    parameters = [p.detach().clone() for p in model.parameters()]
    drift = 0.0 if reference is None else largest_difference(parameters, reference.parameters)
    step_seconds = statistics.median(seconds)
    return Run(
        name=name,
        losses=losses,
        accuracy=accuracy(model, digits),
        parameters=parameters,
        gradients=gradients,
        differences=differences,
        parameter_difference=drift,
        nodes=nodes,
        is_compiled=reference is not None and 2 * sum(name in reference.nodes for name in nodes) < len(nodes),
        bitwise=reference is None or (losses == reference.losses and not any(differences) and drift == 0),
        compile_seconds=max(0.0, seconds[0] - step_seconds),
        step_ms=1000 * step_seconds,
    )


def step_of(model: nn.Module) -> Step:
    """One optimizer step: forward under bf16 autocast, backward outside of it, as torch's autocast guide says."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE)

    def step(images: Tensor, labels: Tensor) -> Tensor:
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss, _ = model(images, labels)
        loss.backward()
        optimizer.step()
        return loss

    return step


def batches(digits: Digits, epochs: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Full batches only, shuffled by epoch with fixed seeds."""
    for epoch in range(epochs):
        order = torch.randperm(len(digits.train_labels), generator=torch.Generator().manual_seed(epoch))
        for chosen in order.split(BATCH_SIZE):
            if len(chosen) == BATCH_SIZE:
                yield digits.train_images[chosen], digits.train_labels[chosen]


def gradients_of(model: nn.Module) -> list[Tensor]:
    return [p.grad.clone() for p in model.parameters() if p.grad is not None]


def largest_difference(ours: list[Tensor], reference: list[Tensor]) -> float:
    """Largest absolute difference of two lists of tensors: 0 exactly if all are equal, inf if one is NaN."""
    if same_bits(ours, reference):
        return 0.0
    difference = max((a.double() - b.double()).abs().max().item() for a, b in zip(ours, reference, strict=True))
    return float("inf") if difference != difference else difference


@torch.no_grad()
def accuracy(model: nn.Module, digits: Digits) -> float:
    """The share of test digits that the model gets right, run eagerly in float32."""
    _, logits = model(digits.test_images, digits.test_labels)
    return (logits.argmax(1) == digits.test_labels).float().mean().item()
