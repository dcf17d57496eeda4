"""Whole training steps on a GPU: beside eager's, and beside the same step captured by hand in one graph, the *floor*.

    gradc bench step --device cuda [--only mlp,gpt] [--torch] [--seconds S] [--out FOLDER]
    measure: (model, ways, device, seconds) -> iterator of Measured, one for each way, as soon as it is done

One way at a time stands beside eager, so that the memory of two is held at most. Blocks of steps alternate, each between two
waits for the device; the figures are medians over blocks, those that count are ratios. A model has ``--seconds``: a way that
would begin later says so instead. Before, the parameters after ``NUM_STEPS`` steps are compared with eager's, bit for bit, if
eager repeats its own; else all is made once more under deterministic algorithms, and compared there.

Appends a line for each to FOLDER/benchmarks/steps-on-DEVICE.jsonl, and prints a table for each model.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

import gradc
from benchmarks import devices
from benchmarks.common import CONTENDERS, Step, failure, prepare, warm_up
from benchmarks.devices import Device, Memory
from benchmarks.step import WAYS, Training, Way, leave, training
from gradc import text_table
from gradc.bits import same_bits

NUM_STEPS = 20  # behind those that run call by call, and the one that is captured
SECONDS_OF_A_BLOCK, SECONDS_OF_BLOCKS = 0.03, 1.5
FEWEST_BLOCKS, MOST_BLOCKS = 5, 15
FLOOR = "floor"
NO_TIME = "no time left"
CONVOLUTIONS = ("CNN", "ResNet")  # with SGD, as they are trained


@dataclasses.dataclass(frozen=True)
class Measured:
    """What one way did with one model; ``error`` is empty, or says why there are no figures.

    Attributes:
        seconds: of a step; ``host_seconds``, until the call returned.
        speed: how many times faster than eager; ``of_floor``, the same of the floor's speed, 0 where there is none.
        first_step: seconds.
        allocated, reserved: the peak in bytes, from the first step on, beyond what others held.
        bits: "eager's", "others", with the mode that both ran in; or why nobody can tell.
        counted: of one of the last steps, by group and reason: what eager ran.
        did: of all steps: what gradc counted of graphs of the device, and of optimizers.
    """

    model: str
    way: str
    seconds: float = 0.0
    host_seconds: float = 0.0
    speed: float = 0.0
    of_floor: float = 0.0
    first_step: float = 0.0
    allocated: int = 0
    reserved: int = 0
    bits: str = ""
    counted: dict[str, dict[str, int]] = dataclasses.field(default_factory=dict)
    did: dict[str, dict[str, int]] = dataclasses.field(default_factory=dict)
    error: str = ""


def ways_on(device: Device, *, with_torch: bool) -> dict[str, Way]:
    found = {"eager": WAYS["eager"]}
    if device.has_graphs:
        found[FLOOR] = Way(leave, compile_optimizer=_capturable, compile_step=lambda step: _captured(device, step))
    found |= {name: WAYS[name] for name in ("gradc: step", "gradc: model", "gradc: model, optimizer")}
    if with_torch:
        found["torch.compile"] = Way(CONTENDERS["torch.compile"].compile)
        found["torch.compile, reduce-overhead"] = Way(lambda target: torch.compile(target, mode="reduce-overhead"))
    return found


def _capturable(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    """Its numbers of steps lie on the device, where a graph can count them."""
    for group in optimizer.param_groups:
        if "capturable" in group:
            group["capturable"] = True
    return optimizer


def _captured(device: Device, step: Step) -> Step:
    """Captured at the first call."""
    replays = list[Step]()

    def run() -> Any:
        if not replays:
            replays.append(device.capture(step))
        return replays[0]()

    return run


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.01, momentum=0.9)


def trained_on(device: Device, model: str, way: Way) -> Training:
    return training(model, way, device.placed(), sgd if model.startswith(CONVOLUTIONS) else torch.optim.Adam)


# ---- eager's bits

MODES: dict[str, Callable[[], contextlib.AbstractContextManager[None]]] = {
    "": contextlib.nullcontext,
    "deterministic algorithms": devices.deterministic,
    "deterministic algorithms where there are any": lambda: devices.deterministic(warn_only=True),
}


class Reference:
    """Eager's parameters after some steps, in the first of ``MODES`` in which eager repeats itself.

    ``mode`` is None if there is no such mode.
    """

    def __init__(self, device: Device, model: str) -> None:
        self._device, self._model = device, model
        self.mode: str | None = None
        for mode in MODES:
            with contextlib.suppress(RuntimeError):  # there is no such algorithm
                first = self._after_steps(WAYS["eager"], mode)
                if same_bits(first, self._after_steps(WAYS["eager"], mode)):
                    self.mode, self._parameters = mode, first
                    return

    def compared(self, way: Way, parameters: list[torch.Tensor]) -> str:
        """In words. ``parameters`` are those of ``way`` outside of all modes."""
        if self.mode is None:
            return "eager does not repeat itself"
        if self.mode:
            parameters = self._after_steps(way, self.mode)
        if same_bits(self._parameters, parameters):
            return "eager's" + f", under {self.mode}" * bool(self.mode)
        if not same_bits(self._parameters, self._after_steps(WAYS["eager"], self.mode)):
            return "eager does not repeat itself"
        return "others" + f", under {self.mode}" * bool(self.mode)

    def _after_steps(self, way: Way, mode: str) -> list[torch.Tensor]:
        with MODES[mode](), way.settings():
            own = trained_on(self._device, self._model, way)
            for _ in range(NUM_STEPS):
                own.step()
            return parameters_of(own)


def parameters_of(own: Training) -> list[torch.Tensor]:
    """On the host, where they take none of the memory that is measured."""
    return [parameter.detach().cpu().clone() for parameter in own.parameters]


# ---- time


@dataclasses.dataclass(frozen=True)
class Warm:
    """A training behind its first steps."""

    own: Training
    first_step: float
    peak: Memory
    counted: dict[str, dict[str, int]]
    parameters: list[torch.Tensor]


def warmed_up(device: Device, model: str, way: Way) -> Warm:
    device.forget()
    before = device.memory()
    own = trained_on(device, model, way)
    start = time.perf_counter()
    own.step()
    device.synchronize()
    first_step = time.perf_counter() - start
    for _ in range(NUM_STEPS - 2):
        own.step()
    counted = {group: gradc.counters[group].copy() for group in ("fallbacks", "uncompiled")}
    own.step()
    peak = device.peak() - before
    here = {group: dict(gradc.counters[group] - old) for group, old in counted.items()}
    return Warm(own, first_step, peak, here, parameters_of(own))


@dataclasses.dataclass(frozen=True)
class Block:
    """Seconds of a step: until the call returned, and until the device was done."""

    host: float
    whole: float


def block(device: Device, step: Step, repeats: int) -> Block:
    device.synchronize()
    start = time.perf_counter()
    for _ in range(repeats):
        step()
    returned = time.perf_counter()
    device.synchronize()
    return Block((returned - start) / repeats, (time.perf_counter() - start) / repeats)


def in_turns(device: Device, ways: Mapping[str, Way], steps: Mapping[str, Step], end: float) -> dict[str, list[Block]]:
    """Blocks of each, in turns. Each block begins with a step that is not timed."""
    found: dict[str, list[Block]] = {name: [] for name in steps}
    repeats: dict[str, int] = {}
    for name, step in steps.items():
        with ways[name].settings():
            repeats[name] = max(1, round(SECONDS_OF_A_BLOCK / min(block(device, step, 1).whole for _ in range(3))))
    end = min(end, time.monotonic() + SECONDS_OF_BLOCKS)
    for number in range(MOST_BLOCKS):
        if number >= FEWEST_BLOCKS and time.monotonic() > end:
            break
        for name, step in steps.items():
            with ways[name].settings():
                step()
                found[name].append(block(device, step, repeats[name]))
    return found


def measure(model: str, ways: Mapping[str, Way], device: Device, seconds: float) -> Iterator[Measured]:
    """The first of ``ways`` is eager.

    Raises:
        Exception: what the step raises in eager.
    """
    end, floor = time.monotonic() + seconds, 0.0
    gradc.reset()
    reference = Reference(device, model)
    eager = warmed_up(device, model, ways["eager"])
    for name, way in ways.items():
        if name != "eager" and time.monotonic() > end:
            yield Measured(model, name, error=NO_TIME)
            continue
        try:
            with way.settings():
                own = eager if name == "eager" else warmed_up(device, model, way)
            blocks = in_turns(device, ways, {"eager": eager.own.step, name: own.own.step}, end)
            did = {group: dict(gradc.counters[group]) for group in ("device_graphs", "optim") if gradc.counters[group]}
            bits = "" if name == FLOOR else reference.compared(way, own.parameters)  # the floor's formula of Adam is another
        except Exception as error:
            yield Measured(model, name, error=failure(error))
        else:
            speed = statistics.median(theirs.whole / mine.whole for theirs, mine in zip(blocks["eager"], blocks[name]))
            floor = speed if name == FLOOR else floor
            whole, host = (statistics.median(times) for times in zip(*((b.whole, b.host) for b in blocks[name])))
            of_floor, peak = (speed / floor if floor else 0.0), own.peak
            yield Measured(
                model, name, whole, host, speed, of_floor, own.first_step, peak.allocated, peak.reserved, bits, own.counted, did
            )
        own = blocks = None  # type: ignore[assignment]  # or their memory is held while the next is measured
        if name != "eager":
            gradc.reset()


# ---- what is printed

HEADERS = ["way", "ms", "host ms", "of eager's speed", "of the floor's"]
HEADERS += ["first step s", "peak MiB", "reserved MiB", "graphs", "bits", "eagerly"]


def row(found: Measured, eager: Measured | None) -> list[str]:
    if found.error:
        return [found.way, *[""] * (len(HEADERS) - 2), found.error]
    times = [f"{1e3 * found.seconds:.3f}", f"{1e3 * found.host_seconds:.3f}", f"{found.speed:.2f}"]
    of_floor = f"{found.of_floor:.2f}" if found.of_floor else ""
    theirs = eager or Measured(found.model, "eager")
    memory = [_beside(found.allocated, theirs.allocated), _beside(found.reserved, theirs.reserved)]
    eagerly = ", ".join(f"{reason} ({number})" for group in found.counted.values() for reason, number in group.items())
    graphs = ", ".join(f"{number} {what}" for what, number in found.did.get("device_graphs", {}).items())
    return [found.way, *times, of_floor, f"{found.first_step:.2f}", *memory, graphs, found.bits, eagerly]


def _beside(num_bytes: int, eagers: int) -> str:
    """``"120 (1.05)"``: in MiB, and how many times eager's."""
    if not num_bytes:
        return ""
    return f"{num_bytes / 2**20:.0f}" + (f" ({num_bytes / eagers:.2f})" if eagers else "")


def table(found: list[Measured]) -> str:
    eager = next((each for each in found if each.way == "eager"), None)
    return text_table.table(HEADERS, [row(each, eager) for each in found])


def main(options: argparse.Namespace) -> None:
    device = devices.find(options.device)
    prepare(options.threads)
    with device.placed():
        warm_up(["gradc", *(["torch.compile"] if options.torch else [])])
    store = Path(options.out) / "benchmarks" / f"steps-on-{options.device.replace(':', '-')}.jsonl"
    store.parent.mkdir(parents=True, exist_ok=True)
    for model in options.only:
        found = []
        try:
            for measured in measure(model, ways_on(device, with_torch=options.torch), device, options.seconds):
                found.append(measured)
                with store.open("a") as out:
                    out.write(json.dumps(dataclasses.asdict(measured)) + "\n")
        except Exception as error:
            print(f"{model}: {failure(error)}", flush=True)
        print(f"{model}\n{table(found)}\n", flush=True)
    print(f"Figures: {store}")
