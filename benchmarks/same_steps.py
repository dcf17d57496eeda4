"""Are whole compiled steps of the models in models.py eager's, bit for bit, for long?

    python -m benchmarks.same_steps [--steps 200] [--only mlp,gpt]        on a GPU: python -m tests.cuda --parts steps,large

After so many steps with Adam: the losses, gradients, parameters, the optimizer's state, the generator. Ends with 1 if one
differs.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from typing import Any

import torch

import gradc
from benchmarks.devices import Device
from benchmarks.models import SMALL
from benchmarks.on_device import trained_on
from benchmarks.runs import add_only
from benchmarks.step import WAYS, Training, Way, training
from gradc.bits import same_bits


def train(model: str, way: Way, num_steps: int, device: Device | None = None) -> dict[str, Any]:
    """Take ``num_steps`` steps, from fixed seeds. Returns what there is then, each under its name."""
    made = training(model, way) if device is None else trained_on(device, model, way)
    losses = [made.step().detach().clone() for _ in range(num_steps)]
    return dict(_values(losses, made, device or Device("cpu")))


def _values(losses: list[Any], made: Training, device: Device) -> Iterator[tuple[str, Any]]:
    yield from ((f"loss {number}", loss) for number, loss in enumerate(losses))
    for number, parameter in enumerate(made.parameters):
        yield f"parameter {number}", parameter.detach()
        yield f"gradient {number}", parameter.grad
        yield from ((f"{name} of parameter {number}", value) for name, value in made.optimizer.state[parameter].items())
    yield from ((f"generator {number}", state) for number, state in enumerate(device.generators()))


def differences(model: str, num_steps: int) -> tuple[list[str], str]:
    """The names of what differs, and a line about the run."""
    gradc.reset()
    eager = train(model, WAYS["eager"], num_steps)
    compiled = train(model, WAYS["gradc: step"], num_steps)
    counted = gradc.counters["fallbacks"] + gradc.counters["uncompiled"]
    graphs, native = gradc.counters["stats"]["unique_graphs"], gradc.counters["optim"]["native steps"]
    did = f"{len(eager)} values; {graphs} graphs, {native} native updates, {dict(counted) or 'nothing'} in eager"
    return others(eager, compiled), did


def others(eager: dict[str, Any], compiled: dict[str, Any]) -> list[str]:
    """The names of what is not the same in both."""
    return [name for name in eager | compiled if not _is_same(eager, compiled, name)]


def _is_same(eager: dict[str, Any], compiled: dict[str, Any], name: str) -> bool:
    return name in eager and name in compiled and same_bits(eager[name], compiled[name])


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--steps", type=int, default=200)
    add_only(parser, SMALL)
    options = parser.parse_args()
    torch.set_num_threads(1)
    is_same = True
    for model in options.only:
        found, did = differences(model, options.steps)
        is_same &= not found
        bits = f"others: {', '.join(found[:8])}" if found else "eager's bits"
        print(f"{model}, {options.steps} steps: {bits}; {did}", flush=True)
    return int(not is_same)


if __name__ == "__main__":
    sys.exit(main())
