"""Time contenders against each other, fairly: one process, interleaved, medians of ratios.

    race: {contender's name: step} -> {name: Timing}        first_call: step -> seconds        peak_bytes: step -> bytes

Rounds alternate between the contenders, so that a slow minute of the machine hits all of them; a contender's ratio is
the median over rounds of its time divided by eager's in the same round. Compiler caches on disk are off.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import itertools
import statistics
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

import gradc

# What compiled code takes is the question here, and not which is faster.
gradc.config.compile_seconds = None
gradc.config.compare_with_eager = False

FEWEST_ROUNDS = 10
Compile = Callable[[Any], Any]
Step = Callable[[], Any]


@dataclasses.dataclass(frozen=True)
class Timing:
    """Median seconds per step, and the median over rounds of the ratio to eager's."""

    seconds: float
    ratio: float


def _itself(target: Any) -> Any:
    return target


@dataclasses.dataclass(frozen=True)
class Contender:
    """A way to compile: a model or its loss, or the whole step. The settings must be in force while it compiles and runs."""

    compile: Compile
    settings: Callable[[], contextlib.AbstractContextManager[Any]] = contextlib.nullcontext
    compile_step: Compile = _itself


def _dynamo_settings(**settings: bool) -> Callable[[], contextlib.AbstractContextManager[Any]]:
    return lambda: torch._dynamo.config.patch(**settings)


def _torch_compile() -> Compile:
    """torch.compile with Inductor, as a backend of its own: equal backends share what Dynamo compiled for the first."""
    inductor = torch._dynamo.lookup_backend("inductor")

    def backend(graph: torch.fx.GraphModule, inputs: list[Any]) -> Any:
        return inductor(graph, inputs)

    return lambda target: torch.compile(target, backend=backend)


def _captured() -> contextlib.AbstractContextManager[Any]:
    return gradc.compiled_autograd.enable()


CONTENDERS: dict[str, Contender] = {
    "eager": Contender(_itself),
    "torch.compile": Contender(_torch_compile()),
    "torch.compile, autograd ops": Contender(_torch_compile(), _dynamo_settings(trace_autograd_ops=True)),
    "torch.compile, compiled autograd": Contender(_torch_compile(), _dynamo_settings(compiled_autograd=True)),
    "torch.compile aot_eager": Contender(lambda target: torch.compile(target, backend="aot_eager")),
    "gradc": Contender(gradc.compile),
    "gradc: step": Contender(_itself, compile_step=gradc.compile),
    "gradc, compiled autograd": Contender(lambda target: torch.compile(target, backend="gradc"), _captured),
}


def prepare(num_threads: int = 1) -> None:
    """Call once at the start: threads, no caches, no chatter."""
    torch.set_num_threads(num_threads)
    torch.compiler.config.force_disable_caches = True
    warnings.filterwarnings("ignore")
    print(f"torch {torch.__version__}, {num_threads} thread(s)")


def race(
    steps: dict[str, Step], seconds: float = 4.0, rounds: int = 40, contenders: Mapping[str, Contender] = CONTENDERS
) -> dict[str, Timing]:
    """Time ``steps`` (warm already) in turns for about ``seconds`` altogether. The first one is the reference.

    A turn begins with a step that is not timed: it finds the settings changed, and the caches full of the others' data.
    Where a step takes long, there are fewer rounds, but ``FEWEST_ROUNDS``.
    """
    alone = {name: _shortest(step, contenders[name]) for name, step in steps.items()}
    rounds = min(rounds, max(FEWEST_ROUNDS, round(seconds / (2 * sum(alone.values())))))
    share = seconds / (rounds * len(steps))
    repeats = {name: max(1, round(share / time)) for name, time in alone.items()}
    times: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(rounds):
        for name, step in steps.items():
            with contenders[name].settings():
                step()
                times[name].append(_time(step, repeats[name]))
    reference = next(iter(times.values()))
    return {
        name: Timing(statistics.median(own), statistics.median(map(float.__truediv__, own, reference)))
        for name, own in times.items()
    }


def _time(step: Step, repeats: int) -> float:
    start = time.perf_counter()
    for _ in range(repeats):
        step()
    return (time.perf_counter() - start) / repeats


def _shortest(step: Step, contender: Contender) -> float:
    with contender.settings():
        return min(_time(step, 1) for _ in range(5))


def first_call(step: Step, contender: str, *, may_fall_back: bool = False) -> float:
    """Seconds of the first call: capture, compilation and the step itself.

    Raises:
        RuntimeError: if a compiler compiled nothing, or gradc ran a part eagerly: its time would be eager's.
    """
    graphs, fallbacks = _num_graphs(), gradc.counters["fallbacks"].copy()
    start = time.perf_counter()
    step()
    seconds = time.perf_counter() - start
    if contender != "eager" and _num_graphs() == graphs:
        raise RuntimeError("nothing was compiled")
    if not may_fall_back and (ran_eagerly := gradc.counters["fallbacks"] - fallbacks):
        raise RuntimeError(f"parts ran eagerly: {dict(ran_eagerly)}")
    return seconds


def _num_graphs() -> int:
    return torch._dynamo.utils.counters["stats"]["unique_graphs"]


def peak_bytes(step: Step) -> int:
    """The most that torch's allocator holds during a step beyond the least that it holds: what a step needs at once.

    Two steps are watched: whether the profiler sees the first give up the gradients of the one before is chance.
    """
    step()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profiler:
        step()
        step()
    events = [event for event in profiler.profiler.kineto_results.events() if event.name() == "[memory]"]
    held = list(itertools.accumulate(event.nbytes() for event in sorted(events, key=lambda event: event.start_ns())))
    return max(held) - min(held)


def fresh(name: str) -> ModuleType:
    """A new copy of ``benchmarks/<name>.py``: its code objects are its own, so contenders share no Dynamo cache."""
    path = Path(__file__).parent / f"{name}.py"
    spec = importlib.util.spec_from_file_location(f"benchmarks.{name}_{time.monotonic_ns()}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def warm_up(names: Iterable[str]) -> None:
    """Let each contender import what it needs by compiling a trifle, so that first calls measure compilation."""
    for name in names:
        with CONTENDERS[name].settings():
            trifle = CONTENDERS[name].compile(lambda x: x.sin())
            trifle(torch.ones(2, requires_grad=True)).sum().backward()
    torch._dynamo.reset()


def failure(error: Exception) -> str:
    """The error's type and first line; with a second one if the first only announces it."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    told = " ".join(lines[: 2 if lines and lines[0].endswith(":") else 1])
    return f"{type(error).__name__}: {told}"[:160]


@contextlib.contextmanager
def reported(what: str) -> Iterator[None]:
    """Say that ``what`` failed, in a line, and go on: other compilers refuse some of the models."""
    try:
        yield
    except Exception as error:
        print(f"  {what}: {failure(error)}", flush=True)
