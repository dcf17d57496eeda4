"""Everything that a report says, found by running a step some times in eager and compiled: the table of contents.

    collect: (redirection, step, arguments, number of steps) -> StepReport

    eager      each call recorded (eagerly.py)
    compiled   with nothing around: timed as a whole, in turns with eager; then profiled, for what passes at graph breaks
    compiled   again, its Programs watched (programs.py), what gradc tells heard; then timed, graph by graph, and call by call
    checked    as gradc.check does (parity/check.py)

All runs begin with the same state. What is measured is the last of the steps: by then, what changes has changed.
"""

from __future__ import annotations

import collections
import dataclasses
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch

from gradc import environment
from gradc.accelerator import clock, peak
from gradc.config import config
from gradc.errors import ConfigError
from gradc.frontend.control import reset
from gradc.journal import listening
from gradc.parity.against import Redirection
from gradc.parity.check import check_with
from gradc.parity.runs import Prepared, Runs
from gradc.reporting.calls import Call, Log, quickest
from gradc.reporting.eagerly import EagerPlace, recorded
from gradc.reporting.explain import Explanation, explanation_of
from gradc.reporting.graphs import Described
from gradc.reporting.memory import curve_of, name_known, name_left
from gradc.reporting.model import OpTime, Phase, StepReport, Times
from gradc.reporting.programs import Measure, Programs
from gradc.torch_private.dynamo import compilations
from gradc.traces.compile_time import CompileTime, compile_time_of, compiled_since
from gradc.traces.times import StepTimes, step_times

_FEWEST_RUNS, _MOST_RUNS, _MOST_SECONDS = 3, 15, 3.0  # of a whole step, timed
_RECORDED_RUNS = 3  # of its calls and graphs, each timed by itself

_WITHOUT_EAGER = "So nothing is known of modules, of which gradient belongs to which op, and of single calls in eager."


@dataclasses.dataclass(frozen=True)
class _Alone:
    """The compiled step with nothing around: seconds of the last step, run after run, in turns with eager; those of the first,
    which compiles, and what they went to; which part of a step, be it the first or the last, passes at which graph break; what
    a GPU's allocator says of both."""

    seconds: list[float]
    eager_seconds: list[float]
    first: float
    compile_time: CompileTime
    shares: StepTimes
    notes: tuple[str, ...]


def collect(
    redirection: Redirection, step: Callable[..., Any], args: tuple[Any, ...], num_steps: int, *, is_checked: bool = True
) -> StepReport:
    """``is_checked``: also compare the compiled step with eager, as ``gradc.check`` does.

    Raises:
        ConfigError: for no step at all, or an argument that cannot be copied.
        Exception: what the step raises in eager.
    """
    if num_steps < 1:
        raise ConfigError(f"gradc.report: steps={num_steps} is none. Use 1 or more.")
    runs = Runs(redirection, step, args, num_steps)
    has_rest, eager, notes = _in_eager(runs, num_steps)
    with config.patch(compare_with_eager=False):  # after many steps, some would run eagerly to compare
        alone = _alone(runs, num_steps, has_rest)
        programs, explanation = _watched(runs, num_steps, has_rest, alone)
    described = Described(programs, eager)
    return StepReport(
        title=getattr(step, "__name__", type(step).__name__),
        versions=environment.versions(),
        num_steps=num_steps,
        graphs=tuple(described.graphs()),
        ops=tuple(described.ops()),
        memory=curve_of(programs.log, described.source, range(len(programs.log.calls))),
        eager_memory=curve_of(eager, described.eager_source, described.eager_places()),
        times=Times(
            statistics.median(alone.eager_seconds),
            statistics.median(alone.seconds),
            alone.first,
            len(alone.seconds),
            tuple(_by_op(eager, programs.log)),
            _spread(alone.eager_seconds),
            _spread(alone.seconds),
            torch.get_num_threads(),
        ),
        explanation=explanation,
        parity=check_with(redirection, step, args, num_steps) if is_checked else None,
        notes=(*notes, *alone.notes, *filter(None, [environment.busyness()])),
        made=time.strftime("%Y-%m-%d %H:%M"),
    )


def _in_eager(runs: Runs, num_steps: int) -> tuple[bool, Log[EagerPlace], tuple[str, ...]]:
    with runs.prepared(is_eager=True) as prepared:
        with prepared.restoring():
            has_rest = prepared.leaves_graph()
            _warm(prepared, num_steps - 1, has_rest)  # all steps, always: what a step takes in turn, it takes alike in each run
        try:
            logs = [_recorded_in_eager(prepared, num_steps, has_rest) for _ in range(_RECORDED_RUNS)]
        except Exception as error:  # a step may not bear to be looked at; what else was found counts all the same
            text = f"{type(error).__name__}: {error}".partition("\n")[0]
            return has_rest, Log(), (f"Recorded call by call, the step raises in eager: {text}. {_WITHOUT_EAGER}",)
        return has_rest, quickest(logs), ()


def _recorded_in_eager(prepared: Prepared, num_steps: int, has_rest: bool) -> Log[EagerPlace]:
    with prepared.restoring():
        _warm(prepared, num_steps - 1, has_rest)
        return recorded(prepared, has_rest)


def _watched(runs: Runs, num_steps: int, has_rest: bool, alone: _Alone) -> tuple[Programs, Explanation]:
    """What gradc makes of the step, and what it tells meanwhile."""
    reset()
    known = compilations()
    with listening() as events:
        programs = Programs()
        with programs.watching(), runs.prepared(is_eager=False) as prepared:
            with prepared.restoring():
                prepared.once(has_rest)
                num_first = len(events)
                for programs.step in range(2, num_steps + 1):
                    prepared.once(has_rest)
            explanation = explanation_of(events, num_first, known, None, alone.compile_time, alone.shares)
            _measured(prepared, programs, num_steps, has_rest)
        return programs, explanation


def _measured(prepared: Prepared, programs: Programs, num_steps: int, has_rest: bool) -> None:
    """The last step, its graphs timed as wholes; and again, their calls one by one."""
    logs = []
    for measure in (*[Measure.WHOLE] * _RECORDED_RUNS, *[Measure.CALLS] * _RECORDED_RUNS):
        with prepared.restoring():
            _warm(prepared, num_steps - 1, has_rest)
            programs.begin(measure)
            name_known(programs.log.storages, prepared.holders)
            prepared.once(has_rest)
            programs.end()
            name_left(programs.log.storages, prepared.holders, len(programs.log.calls))
            logs.append(programs.log)
    programs.log = quickest(logs[_RECORDED_RUNS:])


def _alone(runs: Runs, num_steps: int, has_rest: bool) -> _Alone:
    reset()
    known = compilations()
    with runs.prepared(is_eager=False) as prepared:
        with prepared.restoring():
            first = _seconds_of(prepared, has_rest)
            new = compiled_since(known)
            _warm(prepared, num_steps - 1, has_rest)
        with prepared.restoring():
            again = _seconds_of(prepared, has_rest)
            _warm(prepared, num_steps - 1, has_rest)
        with runs.beside() as eager:
            seconds, eager_seconds = _in_turns(runs, prepared, eager, num_steps, has_rest)
            notes = _peaks(runs, prepared, eager, num_steps, has_rest)
        with prepared.restoring():
            shares = step_times(lambda: prepared.once(has_rest), _RECORDED_RUNS * num_steps)
        return _Alone(seconds, eager_seconds, first, compile_time_of(new, first, again), shares, notes)


def _seconds_of(prepared: Prepared, has_rest: bool) -> float:
    start = clock()
    prepared.once(has_rest)
    return clock() - start


def _in_turns(
    runs: Runs, compiled: Prepared, eager: Prepared, num_steps: int, has_rest: bool
) -> tuple[list[float], list[float]]:
    """The seconds of the last step, again and again from the same state: compiled, and in eager. A machine that grows slower
    meanwhile does so to both."""
    seconds, theirs = list[float](), list[float]()
    begun = clock()
    while len(seconds) < _FEWEST_RUNS or (len(seconds) < _MOST_RUNS and clock() - begun < _MOST_SECONDS):
        seconds.append(_last_step(compiled, num_steps, has_rest))
        with runs.as_it_is():
            theirs.append(_last_step(eager, num_steps, has_rest))
    return seconds, theirs


def _peaks(runs: Runs, compiled: Prepared, eager: Prepared, num_steps: int, has_rest: bool) -> tuple[str, ...]:
    """A note, where there is a GPU."""
    with peak() as ours:
        _last_step(compiled, num_steps, has_rest)
    with runs.as_it_is(), peak() as theirs:
        _last_step(eager, num_steps, has_rest)
    if ours.num_bytes is None or theirs.num_bytes is None:
        return ()
    told = f"{ours.num_bytes / 2**20:.1f} MiB compiled, {theirs.num_bytes / 2**20:.1f} MiB in eager"
    return (f"The most that the steps took of the GPU's memory, by its allocator: {told}. What CUDA graphs keep is not in it.",)


def _last_step(prepared: Prepared, num_steps: int, has_rest: bool) -> float:
    with prepared.restoring():
        _warm(prepared, num_steps - 1, has_rest)
        return _seconds_of(prepared, has_rest)


def _spread(seconds: list[float]) -> tuple[float, ...]:
    return tuple(statistics.quantiles(seconds, n=4, method="inclusive")[::2])


def _warm(prepared: Prepared, num_steps: int, has_rest: bool) -> None:
    for _ in range(num_steps):
        prepared.once(has_rest)


def _by_op(eager: Log[Any], compiled: Log[Any]) -> Iterator[OpTime]:
    theirs, mine = _sums(eager.calls), _sums(compiled.calls)
    names = sorted({*theirs, *mine}, key=lambda each: -max(theirs[each][1], mine[each][1]))
    for name, phase in names:
        yield OpTime(name, phase, *theirs[name, phase], *mine[name, phase])


def _sums(calls: list[Call[Any]]) -> dict[tuple[str, Phase], tuple[int, float]]:
    found: dict[tuple[str, Phase], tuple[int, float]] = collections.defaultdict(lambda: (0, 0.0))
    for call in calls:
        number, seconds = found[call.op, call.phase]
        found[call.op, call.phase] = number + 1, seconds + call.seconds
    return found
