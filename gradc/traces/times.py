"""Where the time of a compiled step goes: how much of it passes at each graph break, and in backward.

    step_times: (step, number of times) -> StepTimes

Read off torch.profiler's spans of some steps. At a graph break Python runs from where the graph ended to where a compiled
function is next called. What is profiled runs slower than what is not, small ops above all: what counts are shares.
"""

from __future__ import annotations

import collections
import dataclasses
import statistics
from collections.abc import Callable, Mapping, Sequence

import torch

from gradc.accelerator import clock
from gradc.journal import at_each_pass
from gradc.torch_private.dynamo import Uncompiled
from gradc.torch_private.traces import span

_STEP, _BREAK = "gradc: a step", "gradc: passes graph break "
_SEGMENT = "gradc::Segment"
_COMPILED = ("TorchDynamo Cache Lookup", "Torch-Compiled Region", _SEGMENT)


@dataclasses.dataclass(frozen=True)
class StepTimes:
    """A step that was profiled: its seconds, and which parts of it, from 0 to 1, passed where.

    Attributes:
        seconds: from its beginning to its end.
        backward: in the compiled backwards of segments.
        breaks: in Python, at each graph break.
    """

    seconds: float
    backward: float
    breaks: Mapping[Uncompiled, float]


@dataclasses.dataclass(frozen=True)
class Span:
    """One of a profile's, on its clock."""

    name: str
    start: float  # microseconds
    end: float


class _Passes:
    """A span without length where a call comes to a graph break, with its number as the name."""

    def __init__(self) -> None:
        self.numbers: dict[Uncompiled, int] = {}

    @torch.compiler.disable
    def __call__(self, found: Uncompiled) -> None:
        if found.is_break:
            with span(f"{_BREAK}{self.numbers.setdefault(found, len(self.numbers))}"):
                pass


def step_times(step: Callable[[], object], number: int) -> StepTimes:
    """Run ``step`` some times under torch.profiler; of each figure the median."""
    passes = _Passes()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler, at_each_pass(passes):
        for _ in range(number):
            with span(_STEP):
                step()
                clock()  # what a GPU was asked for is part of the step
    spans = [Span(event.name, event.time_range.start, event.time_range.end) for event in profiler.events()]
    spans.sort(key=lambda each: each.start)
    steps = [each for each in spans if each.name == _STEP]
    found = [shares_of(each, [inner for inner in spans if each.start <= inner.start < each.end]) for each in steps]
    names = {broken: f"{_BREAK}{number}" for broken, number in passes.numbers.items()}
    return StepTimes(
        statistics.median(each.end - each.start for each in steps) / 1e6,
        statistics.median(backward for backward, _ in found),
        {broken: statistics.median(shares[name] for _, shares in found) for broken, name in names.items()},
    )


def shares_of(step: Span, spans: Sequence[Span]) -> tuple[float, Mapping[str, float]]:
    """Which part of one step, whose ``spans`` are in order, passed in backward, and at each graph break by its span's name."""
    whole = step.end - step.start
    breaks: collections.defaultdict[str, float] = collections.defaultdict(float)
    end = step.end  # of what Python runs: where something compiled begins, or the next graph break
    for each in reversed(spans):
        if each.name.startswith(_BREAK):
            breaks[each.name] += max(0.0, end - each.end) / whole
        if each.name.startswith((*_COMPILED, _BREAK)):
            end = each.start
    return sum(each.end - each.start for each in spans if each.name == _SEGMENT) / whole, breaks
