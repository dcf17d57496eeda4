"""Explain what gradc makes of a function: graphs, segments, what is saved, what ran eagerly, what was captured again.

    explain: function or module -> (arguments -> Explanation)

The function is run twice, as ``gradc.check`` runs it, on copies of its arguments. What the second call still captures
would be captured again and again.
"""

from __future__ import annotations

import collections
import dataclasses
import html
import re
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeGuard

import torch

from gradc.accelerator import clock
from gradc.backends import DEFAULT_BACKEND, auto
from gradc.backends.auto import Chosen
from gradc.frontend.control import reset
from gradc.frontend.faster import verdict_of
from gradc.journal import Event, Fallback, Graph, Kept, Uncompiled, listening, num_offers, reason
from gradc.parity.observe import copies, differentiate
from gradc.policy.ab_timer import Verdict
from gradc.policy.profitability import forget_verdicts
from gradc.reporting.cures import cure_of
from gradc.text_table import html_table, table
from gradc.torch_private.dynamo import compilations
from gradc.traces.compile_time import CompileTime, compile_time_of, compiled_since
from gradc.traces.programs import compiled_once
from gradc.traces.times import StepTimes, step_times

_MOST_RUNS = 300  # a trial begins after 200 at most, and takes 60
_PROFILED_RUNS = 5
_MOST_SECONDS = 600.0  # that other code is waited for
_MOST_KEPT, _MOST_NEEDED = 8, 3  # that the text shows


@dataclasses.dataclass(frozen=True)
class GraphBreak:
    """Where Dynamo ended a graph, and Python went on.

    Attributes:
        reason: the name under which it is counted, and what was met.
        where: the user's line, or "".
        advice: what to write instead, or "".
        share: which part of a step passes there, in Python, from 0 to 1; None where that was not measured.
    """

    reason: str
    where: str
    advice: str = ""
    share: float | None = None


@dataclasses.dataclass(frozen=True, repr=False)
class Explanation:
    """What ``gradc.explain`` found. ``str`` of it is a report.

    Attributes:
        graphs: the regions that make calls, in the order in which they were made.
        graph_breaks: where Dynamo ended a graph, each once; Python runs in between. The slowest first, where that was measured.
        fallbacks: what ran eagerly, with the reason and what to do; one entry per occurrence. Functions that Dynamo did not
            compile once.
        recaptures: what was captured or compiled again, and what had changed.
        verdict: what ran faster in the program's own calls before, compiled or eager, with both figures; None if those were
            too few to tell (some hundred).
        compile_time: the seconds of the first run beyond the second, by phase.
        times: where the time of a step goes, if that was asked for.
        choices: under ``backend="auto", options={"bitwise": False}``, which code runs each Program, of all that this process
            has compiled since ``gradc.reset``; () where none is decided.
    """

    graphs: tuple[Graph, ...]
    graph_breaks: tuple[GraphBreak, ...]
    fallbacks: tuple[Fallback, ...]
    recaptures: tuple[str, ...]
    verdict: Verdict | None = None
    compile_time: CompileTime | None = None
    times: StepTimes | None = None
    choices: tuple[Chosen, ...] = ()

    def __repr__(self) -> str:
        return f"<Explanation: {self._head()}>"

    def _repr_html_(self) -> str:
        """For a notebook: graphs, and what ran eagerly, as tables."""
        parts = [f"<p>{html.escape(self._head())}</p>", *(html.escape(text) for text in self._verdict())]
        if self.graphs:
            rows = [
                [each.name, str(each.num_calls), _nodes(each), size_in_words(each.saved_bytes), each.where]
                for each in self.graphs
            ]
            parts.append(html_table(["graph", "calls", "autograd nodes by segment", "saved", "begins at"], rows))
        left = [["graph break", each.reason, each.where, each.advice] for each in self.graph_breaks]
        for found in dict.fromkeys(self.fallbacks):
            left.append(["ran eagerly", reason(found.kind, found.detail), found.where, found.advice])
        left += [["captured again", each, "", ""] for each in self.recaptures]
        return "".join([*parts, html_table(["", "why", "where", "what to do"], left) if left else ""])

    def _head(self) -> str:
        parts = [(self.graphs, "graph"), (self.graph_breaks, "graph break"), (self.fallbacks, "fallback")]
        return ", ".join(_number(len(found), name) for found, name in (*parts, (self.recaptures, "recapture")))

    def __str__(self) -> str:
        return "\n".join([self._head(), *self._verdict(), *self._times(), *self._graphs(), *self._kept(), *self._rest()])

    def to_dict(self) -> dict[str, Any]:
        """Texts, numbers, lists and dictionaries only, as for JSON. What ran eagerly more than once stands there once."""
        times, verdict = collections.Counter(self.fallbacks), self.verdict
        return {
            "graphs": [
                dataclasses.asdict(graph) | {"segments": _dicts(graph.segments), "kept": [*map(_kept_dict, graph.kept)]}
                for graph in self.graphs
            ],
            "graph_breaks": _dicts(self.graph_breaks),
            "fallbacks": [dataclasses.asdict(found) | {"times": times[found]} for found in times],
            "recaptures": [*self.recaptures],
            "verdict": None if verdict is None else dataclasses.asdict(verdict) | {"chosen": verdict.chosen.value},
            "compile_time": None if self.compile_time is None else dataclasses.asdict(self.compile_time),
            "choices": [dataclasses.asdict(choice) | {"way": choice.way.value} for choice in self.choices],
        }

    def _verdict(self) -> Iterator[str]:
        if self.verdict is not None:
            yield f"\nruns {self.verdict.how}: {self.verdict}"
        for choice in self.choices:
            yield f"\n{choice}" + _at(choice.where)

    def _times(self) -> Iterator[str]:
        """Only where times were asked for, so that the text of a function is always the same."""
        if self.times is None:
            return
        yield f"\n{self.compile_time}"
        backward, breaks = self.times.backward, sum(self.times.breaks.values())
        yield f"of a step, profiled: {backward:.0%} in compiled backwards, {breaks:.0%} at graph breaks"

    def _graphs(self) -> Iterator[str]:
        if not self.graphs:
            return
        headers = ["graph", "calls", "autograd nodes by segment", "saved"]
        rows = [[graph.name, str(graph.num_calls), _nodes(graph), size_in_words(graph.saved_bytes)] for graph in self.graphs]
        yield f"\n{table(headers, rows)}"
        for graph in self.graphs:
            if graph.where:
                yield f"{graph.name} begins at {graph.where}"

    def _kept(self) -> Iterator[str]:
        """Of all graphs, the largest first; what is small beside them is summed up."""
        kept = sorted(((graph, each) for graph in self.graphs for each in graph.kept), key=lambda pair: -pair[1].num_bytes)
        shown, left = kept[:_MOST_KEPT], kept[_MOST_KEPT:]
        if shown:
            headers = ["kept for backward", "size", "tensor", "made by", "at", "needed by"]
            rows = [
                [
                    graph.name,
                    size_in_words(each.num_bytes),
                    each.tensor,
                    each.made_by or "-",
                    _file(each.where),
                    _needed(each.needed_by),
                ]
                for graph, each in shown
            ]
            yield f"\n{table(headers, rows)}"
        if left:
            yield f"and {len(left)} more: {size_in_words(sum(each.num_bytes for _, each in left))}"

    def _rest(self) -> Iterator[str]:
        for graph_break in self.graph_breaks:
            advice = f"\n  {graph_break.advice}" if graph_break.advice else ""
            share = f"\n  {graph_break.share:.0%} of a step passes here" if graph_break.share is not None else ""
            yield f"\ngraph break: {graph_break.reason}" + _at(graph_break.where) + advice + share
        for found in dict.fromkeys(self.fallbacks):
            times = self.fallbacks.count(found)
            text, advice = reason(found.kind, found.detail), f"\n  {found.advice}" if found.advice else ""
            yield f"\nran eagerly{f' {times} times' if times > 1 else ''}: {text}" + _at(found.where) + advice
        for recapture in self.recaptures:
            yield f"\ncaptured again: {recapture}"


def explain(
    function: Callable[..., Any], *, backend: str = DEFAULT_BACKEND, is_timed: bool = False
) -> Callable[..., Explanation]:
    """Compile ``function``, run it twice with its backward, and say what was made of it.

        print(gradc.explain(model)(x))

    Forgets what was compiled before (``gradc.reset``), so that everything is seen.

    Arguments:
        function: a function or a module; one that gradc.compile returned is explained as it was compiled. It may be a
            whole step: backward runs from those results only that still have a graph.
        backend: for a function that is not compiled yet.
        is_timed: go on to run it: under torch.profiler, to see how much of a step passes at each graph break, then up to 300
            times, until it is clear whether it is faster compiled or eagerly; what ``backend="auto"`` has compiled in the
            background is waited for, and tried. What a step changes beside its arguments it changes as often.

    Returns:
        A function of the arguments (tensors of any dtype and shape, modules and others: they are copied for each run) that
        returns an Explanation.

    Raises:
        ConfigError: for an unknown backend, or an argument that cannot be copied.
    """
    compiled = compiled_once(function, backend)

    def run(*args: Any) -> Explanation:
        verdict, choices = verdict_of(function), auto.choices()
        reset()
        known = compilations()
        step, _ = copies(compiled, args)
        with listening() as events:
            first_seconds, first = _run_on_copies(step, args), len(events)
            compile_time = compile_time_of(compiled_since(known), first_seconds, _run_on_copies(step, args))
        times = _profiled(step, args) if is_timed else None
        if is_timed:
            verdict, choices = _verdict_of_runs(step, args), _choices_of_runs(step, args)
        return dataclasses.replace(explanation_of(events, first, known, verdict, compile_time, times), choices=choices)

    return run


def explanation_of(
    events: Sequence[Event],
    num_first: int,
    known: Sequence[Any],
    verdict: Verdict | None = None,
    compile_time: CompileTime | None = None,
    times: StepTimes | None = None,
) -> Explanation:
    """What was told while a function ran some times.

    Arguments:
        events: all of them.
        num_first: how many of them its first run told.
        known: ``compilations()`` before it.
    """
    return Explanation(
        graphs=tuple(event.what for event in events if isinstance(event.what, Graph) and event.what.num_calls > 0),
        graph_breaks=_graph_breaks(events, times),
        fallbacks=tuple(found for event in events if (found := _fallback(event.what)) is not None),
        recaptures=(
            *(_recaptured(done) for done in compiled_since(known) if done.recompile_reason),
            *(str(event.what) for event in events[num_first:] if event.artifact == "recompiles"),
        ),
        verdict=verdict,
        compile_time=compile_time,
        times=times,
    )


def _dicts(found: Sequence[Any]) -> list[dict[str, Any]]:
    return [dataclasses.asdict(each) for each in found]


def _kept_dict(kept: Kept) -> dict[str, Any]:
    return dataclasses.asdict(kept) | {"needed_by": [*kept.needed_by]}


def _run_on_copies(step: Callable[..., Any], args: tuple[Any, ...]) -> float:
    """The seconds that it took. A module is copied once, by whoever calls: another copy would be compiled anew."""
    return _run(step, _copied(args))


def _copied(args: tuple[Any, ...]) -> tuple[Any, ...]:
    return copies(_run, args)[1]


def _run(step: Callable[..., Any], args: tuple[Any, ...]) -> float:
    start = clock()
    with torch.random.fork_rng():
        differentiate(step(*args))
    return clock() - start


def _profiled(step: Callable[..., Any], args: tuple[Any, ...]) -> StepTimes:
    given = [_copied(args) for _ in range(_PROFILED_RUNS)]

    def once() -> None:
        forget_verdicts()  # or a trial would begin, and run some of the calls eagerly
        _run(step, given.pop())

    return step_times(once, _PROFILED_RUNS)


def _verdict_of_runs(compiled: Callable[..., Any], args: tuple[Any, ...]) -> Verdict | None:
    for _ in range(_MOST_RUNS):
        if (verdict := verdict_of(compiled)) is not None:
            return verdict
        _run_on_copies(compiled, args)
    return None


def _choices_of_runs(step: Callable[..., Any], args: tuple[Any, ...]) -> tuple[Chosen, ...]:
    """What is compiled in the background is waited for, and tried."""
    end = time.monotonic() + _MOST_SECONDS
    for _ in range(auto.NUM_CALLS):
        _run_on_copies(step, args)
    while auto.is_busy() and time.monotonic() < end:
        time.sleep(0.05)
    for _ in range(auto.CALLS_OF_A_TRIAL if num_offers() else 0):
        _run_on_copies(step, args)
    return auto.choices()


def _is_break(what: object) -> TypeGuard[Uncompiled]:
    return isinstance(what, Uncompiled) and what.is_break


def _graph_breaks(events: Sequence[Event], times: StepTimes | None) -> tuple[GraphBreak, ...]:
    found = dict.fromkeys(event.what for event in events if _is_break(event.what))
    breaks = (_graph_break(each, None if times is None else times.breaks.get(each, 0.0)) for each in found)
    return tuple(sorted(breaks, key=lambda each: -(each.share or 0.0)))


def _graph_break(found: Uncompiled, share: float | None) -> GraphBreak:
    advice = found.advice or cure_of(found.kind, found.detail)
    return GraphBreak(reason(found.kind, found.detail), found.where, advice, share)


def _fallback(what: object) -> Fallback | None:
    """What ran eagerly; a function that Dynamo did not compile is one such part."""
    if isinstance(what, Fallback) or (isinstance(what, Uncompiled) and not what.is_break):
        return Fallback(what.kind, what.detail, what.where, what.advice or cure_of(what.kind, what.detail))
    return None


def _guard(reason: str) -> str:
    """``0/0: n == 3   # the line that reads it ...`` as ``n == 3 no longer holds``, for what Dynamo says so."""
    text = reason.splitlines()[0].split(": ", 1)[-1].split("#")[0].strip()
    return f"{text} no longer holds" if "==" in text else text


def _recaptured(done: Any) -> str:
    """What was compiled again, the guard that no longer held and the line that it is for, and what to do."""
    name = f"{done.co_name} at {done.co_filename}:{done.co_firstlineno}" if done.co_name else "a backward pass"
    read = re.search(r"# (\S+:\d+) in \S+\s*$", done.recompile_reason.splitlines()[0])
    guard = _guard(done.recompile_reason)
    return f"{name}: {guard}{f', read at {read[1]}' if read else ''}\n  {_cure_of_guard(guard)}"


def _cure_of_guard(guard: str) -> str:
    if re.search(r"size|shape|stride|\bn == \d", guard):
        return "Keep sizes the same, or compile with dynamic=True: what is captured then serves all of them."
    if re.search(r"autocast|grad_mode|grad_enabled|GLOBAL_STATE|mode", guard):
        return "It is compiled once for each mode that is on when it is called: let that be the same at each call."
    return "Let what the guard compares stay the same from call to call, or pass it as a tensor."


def _at(where: str) -> str:
    return f"\n  at {where}" if where else ""


def _number(number: int, name: str) -> str:
    return f"{number} {name}" if number == 1 else f"{number} {name}s"


def _nodes(graph: Graph) -> str:
    return " + ".join(str(cut.num_nodes) for cut in graph.segments) or "-"


def _needed(nodes: Sequence[str]) -> str:
    more = f" and {len(nodes) - _MOST_NEEDED} more" if len(nodes) > _MOST_NEEDED else ""
    return ", ".join(nodes[:_MOST_NEEDED]) + more


def _file(where: str) -> str:
    """``File: /home/me/train.py:3 in step, code: ...`` as ``train.py:3``."""
    found = re.match(r"(?:File: )?(.*?:\d+) in ", where)
    return found[1].rpartition("/")[2] if found else "-"


def size_in_words(number: float) -> str:
    for unit in ("B", "kB", "MB"):
        if number < 1000:
            return f"{number:.0f} {unit}" if unit == "B" else f"{number:.1f} {unit}"
        number /= 1000
    return f"{number:.1f} GB"
