"""Whole training steps with Adam (zero_grad, forward, backward, update) of the models in models.py, beside eager's.

    gradc bench step [--only mlp,gpt] [--torch] [--threads N] [--seconds S]

What is compiled: the model; the model and the optimizer; the whole step, as one function. ``--torch`` adds torch.compile of the
model and of the step. Turns alternate, so the figures that count on a busy machine are the ratios: how many times faster than
eager, the median over rounds. Beforehand each contender's parameters are compared with eager's after a few steps, bit for bit.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
from collections.abc import Callable
from typing import Any

import torch

import gradc
from benchmarks.common import CONTENDERS, Compile, Contender, Step, fresh, prepare, race, reported
from benchmarks.models import MODELS
from benchmarks.steps import matching_models
from gradc.bits import same_bits
from gradc.text_table import table

HEADERS = ["model", "compiled", "step ms", "times eager's speed", "bits", "eager parts of a step"]
NUM_STEPS_COMPARED = 5


def leave(target: Any) -> Any:
    return target


@dataclasses.dataclass(frozen=True)
class Way(Contender):
    """What is compiled of a step: ``compile`` compiles the model or its loss, the others the optimizer and the step."""

    compile_optimizer: Compile = leave
    compile_step: Compile = leave


_inductor = CONTENDERS["torch.compile"]
WAYS = {
    "eager": Way(leave),
    "gradc: model": Way(gradc.compile),
    "gradc: model, optimizer": Way(gradc.compile, compile_optimizer=gradc.compile),
    "gradc: step": Way(leave, compile_step=gradc.compile),
}
WAYS_OF_TORCH = {
    "torch.compile: model": Way(_inductor.compile),
    "torch.compile: step": Way(leave, CONTENDERS["torch.compile, autograd ops"].settings, compile_step=_inductor.compile),
}


def training_step(model: str, way: Way) -> tuple[Step, list[Any]]:
    """A step of a model with Adam, and the parameters."""
    torch.manual_seed(0)
    models, made = fresh("models"), list[Any]()

    def with_adam(parameters: Any, loss: Callable[[], torch.Tensor]) -> Step:
        made.extend(parameters)
        optimizer = way.compile_optimizer(torch.optim.Adam(made))

        def step() -> torch.Tensor:
            optimizer.zero_grad()
            value = loss()
            value.backward()
            optimizer.step()
            return value

        return way.compile_step(step)

    models._step = with_adam  # type: ignore[attr-defined]
    return models.MODELS[model](way.compile), made


def measure(model: str, ways: dict[str, Way], seconds: float) -> list[list[str]]:
    torch._dynamo.reset()
    steps: dict[str, Step] = {}
    parameters: dict[str, list[Any]] = {}
    parts: dict[str, str] = {}
    for name, way in ways.items():
        with reported(name) if name != "eager" else contextlib.nullcontext(), way.settings():
            step, parameters[name] = training_step(model, way)
            for _ in range(NUM_STEPS_COMPARED):
                step()
            before = gradc.counters["fallbacks"].copy()
            step()
            steps[name], parts[name] = step, ", ".join(gradc.counters["fallbacks"] - before)
    bits = {name: same_bits(parameters["eager"], parameters[name]) for name in steps}
    timings = race(steps, seconds, contenders=ways)
    return [
        [model, name, f"{1000 * own.seconds:.3f}", f"{1 / own.ratio:.2f}", "eager's" if bits[name] else "others", parts[name]]
        for name, own in timings.items()
    ]


def main() -> None:
    parser = argparse.ArgumentParser(prog="gradc bench step", description="Time whole training steps with Adam.")
    parser.add_argument("--only", type=matching_models, default=list(MODELS), metavar="NAME,...", help="parts of models' names")
    parser.add_argument("--torch", action="store_true", help="torch.compile, too: minutes for each model")
    parser.add_argument("--threads", type=int, default=1, help="default: %(default)s")
    parser.add_argument("--seconds", type=float, default=4.0, help="of timing for each model; default: %(default)s")
    options = parser.parse_args()
    prepare(options.threads)
    for model in options.only:
        ways = WAYS | WAYS_OF_TORCH if options.torch else WAYS
        print(table(HEADERS, measure(model, ways, options.seconds)) + "\n", flush=True)


if __name__ == "__main__":
    main()
