"""Whole training steps with Adam (zero_grad, forward, backward, update) of the models in models.py, beside eager's.

    gradc bench step [--only mlp,gpt] [--torch] [--auto] [--jax] [--threads N] [--resume] [--seconds S] [--out FOLDER]
    gradc bench step --device cuda [--only mlp,gpt] [--torch] [--seconds S] [--out FOLDER]                on_device.py

What is compiled: the model; the model and the optimizer; the whole step, as one function. ``--torch`` adds torch.compile of the
model, of the model with compiled autograd, and of the step. ``--auto`` adds ``backend="auto"`` without eager's bits: how long
steps take while Inductor compiles in the background, then the race. ``--jax`` adds JAX's jit of the same step (jax_steps.py).
What ``auto`` is compared with is made twice, before it and behind it. Turns alternate, so the figures that count on a busy
machine are ratios: how many times faster than eager, the median over rounds. Before, parameters are compared with eager's after
some steps, bit for bit.

Stores FOLDER/benchmarks/whole-steps-N.json, a model's results in place of its older ones, and writes FOLDER/benchmarks.md and
its plots from all that is stored. FOLDER is docs: to have a look only, use another.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import dataclasses
import functools
import importlib.util
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

import gradc
from benchmarks.common import CONTENDERS, Compile, Contender, Step, Timing, failure, fresh, prepare, race, warm_up
from benchmarks.models import LARGE, MIDDLING, ON_DEVICE, SMALL
from benchmarks.report import WHOLE
from benchmarks.results import WholeResult
from benchmarks.runs import add_arguments, run
from gradc.backends import auto
from gradc.bits import same_bits

NUM_STEPS_COMPARED = 5


def leave(target: Any) -> Any:
    return target


@dataclasses.dataclass(frozen=True)
class Way(Contender):
    """What is compiled of a step: ``compile`` compiles the model or its loss, the others the optimizer and the step."""

    compile_optimizer: Compile = leave
    compile_step: Compile = leave

    def training(self, model: str) -> Any:
        return training(model, self)

    def check(self, model: str, losses: list[float], eager: list[float]) -> None:
        """Nothing: the bits of the parameters are told."""


@dataclasses.dataclass(frozen=True)
class WayOfJax(Way):
    """``name`` is one of those that jax_steps.py has for the model. JAX is an extra, so it is imported when it is asked for."""

    name: str = ""

    def training(self, model: str) -> Any:
        from benchmarks import jax_steps

        return jax_steps.training(model, jax_steps.WAYS[model][self.name])

    def check(self, model: str, losses: list[float], eager: list[float]) -> None:
        from benchmarks import jax_steps

        jax_steps.check_losses(model, losses, eager)


WAYS = {
    "eager": Way(leave),
    "gradc: model": Way(gradc.compile),
    "gradc: model, optimizer": Way(gradc.compile, compile_optimizer=gradc.compile),
    "gradc: step": Way(leave, compile_step=gradc.compile),
}
_captured, _traced = CONTENDERS["torch.compile, compiled autograd"], CONTENDERS["torch.compile, autograd ops"]
WAYS_OF_TORCH = {
    "torch.compile: model": Way(CONTENDERS["torch.compile"].compile),
    "torch.compile: model, compiled autograd": Way(_captured.compile, _captured.settings),
    "torch.compile: step": Way(leave, _traced.settings, compile_step=_traced.compile),
}
_auto = functools.partial(gradc.compile, backend="auto", options={"bitwise": False, "compare_with_eager": True})
WAYS_OF_AUTO = {
    "gradc: model, auto": Way(_auto),
    "gradc: model, optimizer, auto": Way(_auto, compile_optimizer=gradc.compile),
    "gradc: step, auto": Way(leave, compile_step=_auto),
}
AGAIN = ", made again"  # behind what ``auto`` made
WAYS_AGAIN = {name + AGAIN: way for name, way in WAYS.items() if name != "eager"}
SECONDS_OF_EAGER = 5.0
SECONDS_OF_A_TURN = 0.05
STEPS_TO_SETTLE = 250  # the last Program is tried, and then compiled is against eager
MOST_SECONDS = 1200.0


def settle(step: Step, eager: Step) -> tuple[list[float], list[float]]:
    """Call the step until nothing is compiled in the background any more, and all is chosen.

    Returns the seconds of its calls while something was compiled, and of eager's, which take turns with them.
    """
    own, eagers, end = list[float](), list[float](), time.monotonic() + MOST_SECONDS
    for _ in range(auto.NUM_CALLS):
        step()
    while auto.is_busy() and time.monotonic() < end:
        own += times_of(step, SECONDS_OF_A_TURN)
        eagers += times_of(eager, SECONDS_OF_A_TURN)
    for _ in range(STEPS_TO_SETTLE):
        step()
    return own, eagers


def told(model: str, name: str, step: Step, eager: Step) -> str:
    """What steps took while Inductor compiled, beside eager's own, at that time and alone, and what was chosen."""
    own, meanwhile = settle(step, eager)
    alone = times_of(eager, SECONDS_OF_EAGER)
    limit = 1.5 * statistics.median(alone)
    measured = {"while Inductor compiled": own, "eager, meanwhile": meanwhile, "eager, alone": alone}
    lines = [
        f"{whose}: {len(times)} steps, median {1e3 * statistics.median(times):.3f} ms, most {1e3 * max(times):.3f} ms, "
        f"{sum(each > limit for each in times)} over 1.5 of eager's median"
        for whose, times in measured.items()
        if times
    ]
    return "\n".join([f"{model}, {name}", *lines, *map(str, auto.choices())])


def times_of(step: Step, seconds: float) -> list[float]:
    """The seconds of each call, for that long."""
    times, end = [], time.perf_counter() + seconds
    while (start := time.perf_counter()) < end:
        step()
        times.append(time.perf_counter() - start)
    return times


@dataclasses.dataclass(frozen=True)
class Training:
    """A step of a model with its optimizer, and what it changes."""

    step: Step
    parameters: list[Any]
    optimizer: torch.optim.Optimizer

    def saved(self) -> tuple[list[Any], dict[str, Any]]:
        """Copies of the parameters and of the optimizer's state."""
        return [parameter.detach().clone() for parameter in self.parameters], copy.deepcopy(self.optimizer.state_dict())

    def restore(self, parameters: list[Any], state: dict[str, Any]) -> None:
        """Go back to what was saved: after ten thousands of steps gradients are no normal numbers, and kernels slower."""
        with torch.no_grad():
            for parameter, value in zip(self.parameters, parameters, strict=True):
                parameter.copy_(value)
        self.optimizer.load_state_dict(state)


def training(
    model: str, way: Way, place: contextlib.AbstractContextManager[Any] | None = None, optimizer: Any = torch.optim.Adam
) -> Training:
    """A step of a model with Adam, or another optimizer, from a fixed seed. ``place`` says where tensors are made."""
    torch.manual_seed(0)
    models, made, optimizers = fresh("models"), list[Any](), list[torch.optim.Optimizer]()

    def with_optimizer(parameters: Any, loss: Callable[[], torch.Tensor]) -> Step:
        made.extend(parameters)
        updates = way.compile_optimizer(optimizer(made))
        optimizers.append(updates)

        def step() -> torch.Tensor:
            updates.zero_grad()
            value = loss()
            value.backward()
            updates.step()
            return value.detach()

        return way.compile_step(step)

    models._step = with_optimizer  # type: ignore[attr-defined]
    with place or contextlib.nullcontext():
        return Training((models.MODELS | models.LARGE)[model](way.compile), made, optimizers[0])


@dataclasses.dataclass(frozen=True)
class Warm:
    """A training behind its first steps: what they left, and what they took."""

    training: Any
    saved: Any
    losses: list[float]
    first_step: float
    fallbacks: dict[str, int]


def warmed_up(model: str, name: str, way: Way, eager: Warm | None) -> Warm:
    auto.forget()
    own = way.training(model)
    start = time.perf_counter()
    losses = [own.step().item()]
    first_step = time.perf_counter() - start
    losses += [own.step().item() for _ in range(NUM_STEPS_COMPARED - 1)]
    saved = own.saved()
    if eager is not None:
        way.check(model, losses, eager.losses)
    if eager is not None and name in WAYS_OF_AUTO:
        print(told(model, name, own.step, eager.training.step), flush=True)
        own.restore(*saved)
        eager.training.restore(*eager.saved)
    before = gradc.counters["fallbacks"].copy()
    own.step()
    return Warm(own, saved, losses, first_step, dict(gradc.counters["fallbacks"] - before))


def measure(model: str, ways: dict[str, Way], seconds: float) -> list[WholeResult]:
    torch._dynamo.reset()
    warm: dict[str, Warm] = {}
    found: dict[str, WholeResult] = {}
    for name, way in ways.items():
        try:
            with way.settings():
                own = warm[name] = warmed_up(model, name, way, warm.get("eager"))
        except Exception as error:
            if name == "eager":
                raise
            found[name] = WholeResult(name, error=failure(error))
            print(f"  {name}: {found[name].error}", flush=True)
        else:
            is_eagers = name not in WAYS_OF_AUTO and same_bits(warm["eager"].saved[0], own.saved[0])
            found[name] = WholeResult(name, first_call=own.first_step, fallbacks=own.fallbacks, is_eagers=is_eagers)
    timings = race({name: own.training.step for name, own in warm.items()}, seconds, contenders=ways)
    for name, timing in _of_both(timings).items():
        found[name] = dataclasses.replace(found[name], seconds=timing.seconds, ratio=timing.ratio)
    return [result for name, result in found.items() if name not in WAYS_AGAIN]


def _of_both(timings: dict[str, Timing]) -> dict[str, Timing]:
    """The mean of what was made twice.

    The same code, made four times over in one process, is up to 5 % slower the later it is made: its data lie otherwise. So
    ``auto`` is compared with what was made before it and behind it.
    """

    def mean(first: Timing, second: Timing) -> Timing:
        return Timing((first.seconds + second.seconds) / 2, (first.ratio + second.ratio) / 2)

    return {name: mean(own, timings.get(name + AGAIN, own)) for name, own in timings.items() if name not in WAYS_AGAIN}


def main() -> None:
    options = parse()
    if options.device:
        from benchmarks import on_device

        on_device.main(options)
        return
    prepare(options.threads)
    warm_up(["gradc", *(name for name in CONTENDERS if options.torch and name.startswith("torch.compile"))])
    if options.jax:
        from benchmarks import jax_steps

        jax_steps.prepare(options.threads)

    def ways(model: str) -> dict[str, Way]:
        # torch.compile first: what it changes in torch's classes has gradc's functions compiled again, and chosen again
        chosen = WAYS | (WAYS_OF_TORCH if options.torch else {}) | (WAYS_OF_AUTO | WAYS_AGAIN if options.auto else {})
        return chosen | ({name: WayOfJax(leave, name=name) for name in jax_steps.WAYS.get(model, {})} if options.jax else {})

    run("gradc bench step", WHOLE, options, lambda model: measure(model, ways(model), options.seconds))


def parse() -> argparse.Namespace:
    device = argparse.ArgumentParser(add_help=False)
    device.add_argument("--device", help="train there, beside the whole step in one graph of the device: cuda, cpu")
    parser = argparse.ArgumentParser(prog="gradc bench step", description="Time whole training steps.", parents=[device])
    if device.parse_known_args()[0].device:
        add_arguments(parser, ON_DEVICE, SMALL | MIDDLING | LARGE, seconds=30.0)
    else:
        add_arguments(parser)
    parser.add_argument("--torch", action="store_true", help="torch.compile, too: minutes for each model")
    parser.add_argument(
        "--auto", action="store_true", help='backend="auto" without eager\'s bits, too: a minute for each model'
    )
    parser.add_argument("--jax", action="store_true", help="JAX's jit of the same step, too: needs JAX")
    options = parser.parse_args()
    if options.jax and importlib.util.find_spec("jax") is None:
        parser.error("--jax: JAX is not installed here. Install it with: pip install jax")
    return options


if __name__ == "__main__":
    main()
