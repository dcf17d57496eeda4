"""What is looked at on a device, in order of importance.

    PARTS: {name: Part}        Part.items: (Target) -> names        Part.judge: (Target, name) -> iterator of Verdict

An item is judged in a process that has the device, after others. Those of a part that not all can be judged in time are in an
order that the seed chooses.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib.util
import os
from collections.abc import Callable, Iterator
from typing import Any

import torch

from benchmarks import devices, models, on_device
from benchmarks.same_steps import others, train
from benchmarks.step import WAYS
from tests.compilers import EAGER, Compiler, find
from tests.cuda.verdict import Status, Verdict
from tests.oracle import Report

SMALLEST = ("PPO update", "CNN")  # of the models, for a device whose kernels are copies and the host's


@dataclasses.dataclass(frozen=True)
class Target:
    """The device, and how much is asked of it.

    Attributes:
        device: torch's name of it.
        seed: of what is drawn.
        compiler: what is compared with eager (tests/compilers.py).
    """

    device: str = "cuda"
    seed: int = 0
    compiler: str = "gradc"

    @property
    def is_gpu(self) -> bool:
        return self.device.startswith("cuda")

    @property
    def place(self) -> torch.device:
        kind, _, index = self.device.partition(":")
        return torch.device(kind) if kind == "cpu" else torch.device(kind, int(index or 0))

    def num_steps(self, model: str) -> int:
        """How many whole steps are compared."""
        return (50 if model in models.LARGE else 200) if self.is_gpu else 12

    def find(self) -> Compiler:
        return find(self.compiler)


Judge = Callable[[Target, str, float], Iterator[Verdict]]  # the last: for how many seconds it may go on


@dataclasses.dataclass(frozen=True)
class Part:
    """One kind of things to look at.

    Attributes:
        about: a few words, for the page.
        items: their names.
        judge: what becomes of one; yields without its part and seconds.
        weight: the share of the time that it may take, among the parts that are left.
        jobs: in how many processes at most.
        is_timed: alone on the device, in a process that checks nothing else.
        seconds: that an item may take.
    """

    about: str
    items: Callable[[Target], list[str]]
    judge: Judge
    weight: float
    jobs: int = 1000
    is_timed: bool = False
    seconds: float = 60.0


def _verdict(item: str, differences: list[str] | tuple[str, ...], fallbacks: Any, no_verdict: str = "") -> Verdict:
    if differences:
        return Verdict("", item, Status.WRONG, "; ".join(differences)[:2000])
    if no_verdict:
        return Verdict("", item, Status.OTHER, no_verdict[:300])
    return Verdict("", item, Status.EAGERLY if fallbacks else Status.AS_EAGER, ", ".join(fallbacks))


# ---- tests/devices, tests/semantics


def _programs(target: Target) -> list[str]:
    from tests.devices.registry import load

    count = torch.cuda.device_count() if target.is_gpu else 2
    return [name for name, program in load().items() if program.num_devices <= count]


def _cases(target: Target) -> list[str]:
    from tests.devices.__main__ import OTHER_PROCESSES
    from tests.semantics.table import load

    return [f"semantics.{case.room}.{case.name}" for case in load() if case.room not in OTHER_PROCESSES]


def _judge_program(target: Target, item: str, seconds: float) -> Iterator[Verdict]:
    from tests.devices.outcomes import on

    outcome = on(target.place, f"{target.compiler}:{item}")
    yield _verdict(item, outcome.differences, outcome.fallbacks, f"eager raises {outcome.error}" if outcome.error else "")


# ---- architectures


def _architectures(target: Target) -> list[str]:
    if importlib.util.find_spec("transformers") is None:
        return []
    from tests.architectures.models import ARCHITECTURES

    return [f"{one.name}, {precision}" for one in ARCHITECTURES for precision in ("float32", "bf16 autocast")]


def _judge_architecture(target: Target, item: str, seconds: float) -> Iterator[Verdict]:
    os.environ["HF_HUB_OFFLINE"] = "1"
    from tests.architectures import models as architectures
    from tests.architectures.judge import train

    name, _, precision = item.rpartition(", ")

    def trained(compiler: Compiler) -> Report:
        return train(architectures.find(name), compiler, precision != "float32", target.place)

    try:
        report = trained(target.find())
    except ModuleNotFoundError as missing:
        yield _verdict(item, (), {}, f"cannot be imported here: {missing}")
        return
    error = report.eager.error
    if report.differences and any(trained(EAGER).differences for _ in range(3)):
        yield _verdict(item, (), {}, "eager does not repeat itself")
    else:
        yield _verdict(item, report.differences, report.fallbacks, f"eager raises {error}" if error else "")


# ---- torch's samples of ops and modules

SWEPT = (("ops", "float32"), ("modules", "float32"), ("ops", "bfloat16"))
_STATUS = {"bitwise": Status.AS_EAGER, "eagerly": Status.EAGERLY, "mismatch": Status.WRONG, "raises": Status.WRONG}
_STATUS |= {"timeout": Status.HANGS, "crash": Status.CRASHES}


def _samples(target: Target) -> list[str]:
    from torch.testing._internal.common_modules import module_db

    from tests.sweep.suites import op_db

    ops = [op.name + (f".{op.variant_test_name}" if op.variant_test_name else "") for op in op_db()]
    modules = [f"{info.name} {mode}" for info in module_db for mode in ("train", "eval")]
    names = {"ops": ops, "modules": modules}
    return [f"{suite}, {dtype}, {name}" for suite, dtype in SWEPT for name in names[suite]]


@functools.cache
def _subjects(suite: str, dtype: str, device: str) -> tuple[Any, dict[str, Any]]:
    from tests.sweep.suites import SUITES, Choice

    choice = Choice(getattr(torch, dtype), 1, 2, device)
    return choice, {subject.name: subject for subject in SUITES[suite](choice)}


def _judge_samples(target: Target, item: str, seconds: float) -> Iterator[Verdict]:
    from tests.sweep.worker import judge_subject

    suite, dtype, name = item.split(", ")
    choice, subjects = _subjects(suite, dtype, str(target.place))
    for found in judge_subject(suite, subjects[name], target.find(), choice):
        detail = found.detail if found.status in ("bitwise", "eagerly") else f"{found.status}: {found.detail}"
        what = f"{item}, sample {found.sample}, {found.state}"
        yield Verdict("", what, _STATUS.get(found.status, Status.OTHER), detail[:600])


# ---- programs of the fuzzer

FUZZED = ("plain", "gradients", "repeats", "straight")
NUM_PROGRAMS = 2000


def _random_programs(target: Target) -> list[str]:
    return [f"{FUZZED[number % len(FUZZED)]} {target.seed}/{number}" for number in range(NUM_PROGRAMS)]


def _judge_random_program(target: Target, item: str, seconds: float) -> Iterator[Verdict]:
    from tests.fuzz.generate import generate
    from tests.fuzz.judge import BAD, judge
    from tests.fuzz.program import on
    from tests.fuzz.statements import TABLE, WITH_GRADIENTS, WITH_REPEATS
    from tests.fuzz.straight import as_step

    kind, _, which = item.partition(" ")
    seed, number = map(int, which.split("/"))
    program = generate(seed, number, {"gradients": WITH_GRADIENTS, "repeats": WITH_REPEATS}.get(kind, TABLE))
    program = on(target.place.type, as_step(program) if kind == "straight" else program)
    with target.place:
        found = judge(program, target.find())
    is_wrong = found.status in BAD
    status = Status.HANGS if found.status == "hang" else Status.WRONG if is_wrong else Status.OTHER
    if found.status in ("ok", "eagerly"):
        status = Status.AS_EAGER if found.status == "ok" else Status.EAGERLY
    text = f"{found.status}: {found.detail}\n{program.source()}\n{program.inputs}" if is_wrong else found.detail
    yield Verdict("", item, status, text)


# ---- whole steps

WHOLE_WAYS = ("gradc: step", "gradc: model, optimizer")


def _steps(target: Target) -> list[str]:
    names = [name for name in models.SMALL if target.is_gpu or name in SMALLEST]
    return [f"{name}: {way}" for name in names for way in WHOLE_WAYS]


def _large_steps(target: Target) -> list[str]:
    return [f"{name}: gradc: step" for name in models.LARGE] if target.is_gpu else []


def _judge_steps(target: Target, item: str, seconds: float) -> Iterator[Verdict]:
    """In the first of the modes in which eager repeats itself; what compiled steps do is compared with the first run of it."""
    import gradc

    model, _, way = item.partition(": ")
    device = devices.find(target.device) if target.is_gpu else devices.Device(target.place.type)
    for mode, inside in on_device.MODES.items():
        with inside():
            gradc.reset()
            try:
                eager = train(model, WAYS["eager"], target.num_steps(model), device)
            except RuntimeError:  # there is no such algorithm
                continue
            found = others(eager, train(model, WAYS[way], target.num_steps(model), device))
            counted = gradc.counters["fallbacks"] + gradc.counters["uncompiled"]
            if found and others(eager, train(model, WAYS["eager"], target.num_steps(model), device)):
                continue
        names = [f"{len(found)} of {len(eager)} values differ: {', '.join(found[:8])}"] if found else []
        verdict = _verdict(item, names, counted)
        yield dataclasses.replace(verdict, detail=", ".join(filter(None, (verdict.detail, mode and f"under {mode}"))))
        return
    yield _verdict(item, (), {}, "eager does not repeat itself")


# ---- the benchmark


def _timed(target: Target) -> list[str]:
    return models.ON_DEVICE if target.is_gpu else list(SMALLEST[:1])


def _judge_speed(target: Target, item: str, seconds: float) -> Iterator[Verdict]:
    from benchmarks.common import prepare

    prepare()
    device = devices.find(target.device) if target.is_gpu else devices.Device(target.place.type)
    ways = on_device.ways_on(device, with_torch=False)
    for found in on_device.measure(item, ways, device, seconds):
        is_bad = found.bits.startswith("others") or found.error not in ("", on_device.NO_TIME)
        status = Status.WRONG if is_bad and found.way.startswith("gradc") else Status.OTHER if found.error else Status.MEASURED
        speed = f"{1e3 * found.seconds:.3f} ms, {found.speed:.2f} of eager's speed, {found.of_floor:.2f} of the floor's"
        detail = found.error or f"{speed}; bits: {found.bits}"
        yield Verdict("", f"{item}: {found.way}", status, detail, data=dataclasses.asdict(found))


PARTS: dict[str, Part] = {
    "devices": Part("programs of `tests/devices`", _programs, _judge_program, 30),
    "semantics": Part("behaviours of `tests/semantics`", _cases, _judge_program, 40),
    "architectures": Part("tiny models of `transformers`, three steps of AdamW", _architectures, _judge_architecture, 40),
    "sweep": Part("torch's own samples of ops and modules", _samples, _judge_samples, 130, seconds=90),
    "fuzz": Part("random programs", _random_programs, _judge_random_program, 50, seconds=90),
    "steps": Part("whole steps of the benchmark's small models", _steps, _judge_steps, 45, jobs=8, seconds=90),
    "large": Part("whole steps of the benchmark's large models", _large_steps, _judge_steps, 45, jobs=1, seconds=90),
    "speed": Part("`gradc bench step`", _timed, _judge_speed, 150, jobs=1, is_timed=True, seconds=120),
}
DRAWN = ("sweep", "fuzz")


def put_numbers_in_order(target: Target) -> None:
    """The engine takes nodes of the device's thread for younger than any that the main thread has made: as on the CPU.

    Else eager's own last bits, where gradients are added up at second order, follow from how many nodes both threads had made
    before (tests/devices/processes.py).
    """
    from tests.devices.threads import put_ahead

    if target.place.type != "cpu":
        put_ahead([target.place])
