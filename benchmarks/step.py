"""Whole training steps with Adam (zero_grad, forward, backward, update) of the models in models.py, beside eager's.

    gradc bench step [--only mlp,gpt] [--torch] [--auto] [--threads N] [--seconds S]

What is compiled: the model; the model and the optimizer; the whole step, as one function. ``--torch`` adds torch.compile of the
model and of the step. ``--auto`` adds ``backend="auto"`` without eager's bits: how long steps take while Inductor compiles
in the background, then the race. Turns alternate, so the figures that count on a busy machine are ratios: how
many times faster than eager, the median over rounds. Before, parameters are compared with eager's after some
steps, bit for bit.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import functools
import time
from collections.abc import Callable
from typing import Any

import torch

import gradc
from benchmarks.common import CONTENDERS, Compile, Contender, Step, fresh, prepare, race, reported
from benchmarks.models import MODELS
from benchmarks.steps import matching_models
from gradc.backends import auto
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
_auto = functools.partial(gradc.compile, backend="auto", options={"bitwise": False, "compare_with_eager": True})
WAYS_OF_AUTO = {
    "gradc: model, auto": Way(_auto),
    "gradc: model, optimizer, auto": Way(_auto, compile_optimizer=gradc.compile),
    "gradc: step, auto": Way(leave, compile_step=_auto),
}
STEPS_TO_SETTLE = 250  # the last Program is tried, and then compiled is against eager
MOST_SECONDS = 1200.0


def settle(step: Step) -> list[float]:
    """Call the step until nothing is compiled in the background any more, and all is chosen. The seconds of calls meanwhile."""
    seconds, end = [], time.monotonic() + MOST_SECONDS
    for _ in range(auto.NUM_CALLS):
        step()
    while auto.is_busy() and time.monotonic() < end:
        start = time.perf_counter()
        step()
        seconds.append(time.perf_counter() - start)
    for _ in range(STEPS_TO_SETTLE):
        step()
    return seconds


def told(model: str, name: str, seconds: list[float]) -> str:
    """What steps took while Inductor compiled, and what was chosen."""
    parts = (0.5, 0.9, 0.99, 1.0)
    times = sorted(1000 * each for each in seconds)
    shares = [
        f"{part:.0%} of them within {times[min(int(part * len(times)), len(times) - 1)]:.3f} ms" for part in parts if times
    ]
    head = f"{model}, {name}: steps while Inductor compiled: {len(times)}"
    return "\n".join([", ".join([head, *shares]), *map(str, auto.choices())])


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
            auto.forget()
            step, parameters[name] = training_step(model, way)
            for _ in range(NUM_STEPS_COMPARED):
                step()
            if name in WAYS_OF_AUTO:
                print(told(model, name, settle(step)), flush=True)
            before = gradc.counters["fallbacks"].copy()
            step()
            steps[name], parts[name] = step, ", ".join(gradc.counters["fallbacks"] - before)
    bits = {name: name not in WAYS_OF_AUTO and same_bits(parameters["eager"], parameters[name]) for name in steps}
    timings = race(steps, seconds, contenders=ways)
    return [
        [model, name, f"{1000 * own.seconds:.3f}", f"{1 / own.ratio:.2f}", "eager's" if bits[name] else "others", parts[name]]
        for name, own in timings.items()
    ]


def main() -> None:
    parser = argparse.ArgumentParser(prog="gradc bench step", description="Time whole training steps with Adam.")
    parser.add_argument("--only", type=matching_models, default=list(MODELS), metavar="NAME,...", help="parts of models' names")
    parser.add_argument("--torch", action="store_true", help="torch.compile, too: minutes for each model")
    parser.add_argument(
        "--auto", action="store_true", help='backend="auto" without eager\'s bits, too: a minute for each model'
    )
    parser.add_argument("--threads", type=int, default=1, help="default: %(default)s")
    parser.add_argument("--seconds", type=float, default=4.0, help="of timing for each model; default: %(default)s")
    options = parser.parse_args()
    prepare(options.threads)
    for model in options.only:
        ways = WAYS | (WAYS_OF_AUTO if options.auto else {}) | (WAYS_OF_TORCH if options.torch else {})
        print(table(HEADERS, measure(model, ways, options.seconds)) + "\n", flush=True)


if __name__ == "__main__":
    main()
