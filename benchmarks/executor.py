"""The native executor against the same calls made by eager, and by the interpreter: no autograd on any side.

    python benchmarks/executor.py [--repeats 30] [--layers 64]

Captures forward + backward of a model as one Program, checks the executors against each other bit for bit, and prints
medians of interleaved runs, as ratios to eager (which here includes autograd: it is the step that a user runs).
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

from gradc import executor
from gradc.bits import same_bits
from gradc.executor.core import interpret
from gradc.ir.program import Program
from gradc.ir.recorder import Recorder


def mlp(layers: int) -> tuple[torch.nn.Module, torch.Tensor]:
    blocks = [module for _ in range(layers) for module in (torch.nn.Linear(32, 32), torch.nn.Tanh())]
    return torch.nn.Sequential(*blocks), torch.randn(8, 32)


def cnn() -> tuple[torch.nn.Module, torch.Tensor]:
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 16, 3, padding=1), torch.nn.BatchNorm2d(16), torch.nn.ReLU(), torch.nn.MaxPool2d(2),
        torch.nn.Conv2d(16, 32, 3, padding=1), torch.nn.BatchNorm2d(32), torch.nn.ReLU(), torch.nn.Flatten(),
        torch.nn.Linear(32 * 64, 10),
    )  # fmt: skip
    return model, torch.randn(16, 3, 16, 16)


def transformer() -> tuple[torch.nn.Module, torch.Tensor]:
    layer = torch.nn.TransformerEncoderLayer(128, 4, 512, dropout=0.0, activation="gelu", batch_first=True)
    return torch.nn.TransformerEncoder(layer, 4, enable_nested_tensor=False), torch.randn(4, 64, 128)


def step_of(model: torch.nn.Module, x: torch.Tensor) -> Callable[[], list[torch.Tensor]]:
    parameters = list(model.parameters())
    return lambda: list(torch.autograd.grad(model(x).sum(), parameters))


def capture(model: torch.nn.Module, x: torch.Tensor) -> tuple[Program, list[torch.Tensor]]:
    """Forward and backward of ``model(x).sum()`` as one Program, and its inputs."""
    inputs = [x, *model.parameters(), *model.buffers()]
    with Recorder("step") as recorder:
        for number, value in enumerate(inputs):
            recorder.add_input(value, f"input_{number}")
        grads = step_of(model, x)()
    return recorder.program(grads), inputs


def interleaved(runs: dict[str, Callable[[], Any]], repeats: int) -> dict[str, float]:
    times: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(repeats):
        for name, run in runs.items():
            start = time.perf_counter()
            run()
            times[name].append(time.perf_counter() - start)
    return {name: statistics.median(values) for name, values in times.items()}


def report(name: str, model: torch.nn.Module, x: torch.Tensor, repeats: int) -> None:
    program, inputs = capture(model, x)
    plan, interpreter = executor.lower(program), interpret.lower(program)
    for ours, theirs in zip(plan(list(inputs)), interpreter(list(inputs)), strict=True):
        assert same_bits(ours, theirs), f"{name}: executor and interpreter differ"
    eager = step_of(model, x)
    runs = {"eager": eager, "interpreter": lambda: interpreter(list(inputs)), "native": lambda: plan(list(inputs))}
    interleaved(runs, 5)
    medians = interleaved(runs, repeats)
    typed = f"{plan.num_typed} of {plan.num_steps} calls typed" if hasattr(plan, "num_typed") else "no extension"
    columns = (f"{key} {value / medians['eager']:5.2f} ({value * 1e6:7.0f} us)" for key, value in medians.items())
    print(f"{name:12}", *columns, typed, sep="   ")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=30)
    parser.add_argument("--layers", type=int, default=64)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    report("mlp", *mlp(arguments.layers), arguments.repeats)
    report("cnn", *cnn(), arguments.repeats)
    report("transformer", *transformer(), arguments.repeats)


if __name__ == "__main__":
    main()
