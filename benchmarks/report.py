"""The page of step times and its plots, from what is stored.

    write: folder -> its benchmarks.md, whole-steps.png and benchmarks.png, from its benchmarks/*.json
    best: (a model's whole steps, column) -> the quickest of the column's contenders

Nothing is measured here: ``python -m benchmarks.report`` writes docs/benchmarks.md anew from the figures that are there.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Callable, Iterable
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Generic

from benchmarks.results import DOCS, BackwardResult, Entries, Entry, R, Result, WholeResult, load
from gradc.text_table import table

INTRODUCTION = """# Benchmarks

Training steps of models. The contenders take turns in one process; a step's time is the median over 40 rounds, or 10 where
steps take long (in each, one step that is not timed goes first), and what is said of it beside eager is the median over
rounds of its ratio to eager's in the same round. The first call or step includes capture and compilation, with the caches of
all compilers off, but not what compilers import: for that see [the first step of a process](benchmarks/first-call.md). The
models are those of `benchmarks/models.py`.
"""
WHOLE_STEPS = """## Whole steps

Gradients cleared, forward, backward, and Adam's update. Of gradc's: the model compiled; the model and the optimizer; the whole
step, as one function; and each of these with `backend="auto"`, without eager's bits, when all is compiled and chosen.
torch.compile has the model as it comes, the model with compiled autograd, and the whole step with `trace_autograd_ops`. JAX has
the same step, written for it: forward, gradient and update under one `jit`, with donated buffers, from the same parameters and
on as many threads (`benchmarks/jax_steps.py`). Its first losses must be eager's, but for rounding. *Best* is the quickest of
several. What a way of the same compiler has compiled before is not compiled again, so some first steps are short.

![How many times faster than eager's a whole step is, by model and by what is compiled](whole-steps.png)
"""
FORWARD_BACKWARD = """## Forward and backward

The same models without an optimizer: gradients cleared, forward, backward. Peak memory is the most that torch's allocator holds
during a step beyond the least, as the profiler sees it. The contenders are those of `benchmarks/common.py`: *gradc* has the
model or its loss compiled, and backward outside of it; *gradc: step* all of it in one compiled function.

![Step time of each contender, of eager's](benchmarks.png)
"""
Row = list[str]
Series = dict[str, dict[int, float]]  # what the bars of each label are, by the model's place


@dataclasses.dataclass(frozen=True)
class Table(Generic[R]):
    """A row for each contender of each model: where its results and its plot are, and the cells of a result beside eager's."""

    store: str
    plot: str
    result: type[R]
    headers: list[str]
    figures: Callable[[R, R], Row]

    def rows(self, model: str, entry: Entry[R]) -> list[Row]:
        """The model, the contender, figures if there are any, and a note."""
        nothing = [""] * (len(self.headers) - 3)
        return [
            [model, each.contender, *(nothing if each.error else self.figures(each, entry.results[0])), note(each)]
            for each in entry.results
        ]

    def markdown(self, entries: Entries[R]) -> str:
        return table(self.headers, [row for model in entries for row in self.rows(model, entries[model])], markdown=True)

    def stored(self, folder: Path) -> dict[int, Entries[R]]:
        """What ``folder`` holds, by the number of threads."""
        files = {int(path.stem.removeprefix(f"{self.store}-")): path for path in folder.glob(f"benchmarks/{self.store}-*.json")}
        return {threads: load(files[threads], self.result) for threads in sorted(files)}


def _backward_figures(result: BackwardResult, eager: BackwardResult) -> Row:
    times = [f"{1000 * result.seconds:.3f}", f"{result.ratio:.2f}", f"{result.first_call:.2f}"]
    return [*times, f"{result.peak_bytes / 1e6:.2f}", f"{result.peak_bytes / max(eager.peak_bytes, 1):.2f}"]


def _whole_figures(result: WholeResult, eager: WholeResult) -> Row:
    bits = "eager's" if result.is_eagers else "others"
    return [f"{1000 * result.seconds:.3f}", speed(result), bits, f"{result.first_call:.2f}"]


def note(result: Result) -> str:
    parts = ", ".join(f"in eager, {number}x a step: {reason}" for reason, number in result.fallbacks.items())
    return (result.error or parts).replace("|", "\\|")


def speed(result: Result | None) -> str:
    """How many times faster than eager."""
    if result is None:
        return ""
    return "raises" if result.error else f"{1 / result.ratio:.2f}"


BACKWARD = Table(
    "threads",
    "benchmarks.png",
    BackwardResult,
    ["model", "contender", "step ms", "of eager", "first call s", "peak MB", "of eager", "note"],
    _backward_figures,
)
WHOLE = Table(
    "whole-steps",
    "whole-steps.png",
    WholeResult,
    ["model", "compiled", "step ms", "times eager's speed", "bits", "first step s", "note"],
    _whole_figures,
)


@dataclasses.dataclass(frozen=True)
class Column:
    """One of the table of whole steps: which contenders it speaks for, as a pattern, and the colour of its bars."""

    contenders: str
    colour: str


OURS, THEIRS = "gradc: step", "torch.compile, best"
COLUMNS = {
    "gradc: model": Column("gradc: model", "#fdba74"),
    "gradc: model, optimizer": Column("gradc: model, optimizer", "#f97316"),
    OURS: Column("gradc: step", "#c2410c"),
    "gradc: auto, best": Column("gradc: *, auto", "#ca8a04"),
    THEIRS: Column("torch.compile: *", "#8fa3b8"),
    "JAX, best": Column("JAX: *", "#0f766e"),
}


def write(folder: Path) -> None:
    """The page and the plots of all that is stored."""
    (folder / "benchmarks.md").write_text(page(folder))
    if whole := WHOLE.stored(folder):
        speeds = {threads: speeds_of(entries) for threads, entries in whole.items()}
        colours = {name: column.colour for name, column in COLUMNS.items()}
        save_plot(whole, speeds, "times eager's speed\n(higher is better)", folder / WHOLE.plot, colours)
    if steps := BACKWARD.stored(folder):
        ratios = {threads: ratios_of(entries, _contenders(entries), Entry.find) for threads, entries in steps.items()}
        save_plot(steps, ratios, "step time, of eager's\n(lower is better)", folder / BACKWARD.plot)


def page(folder: Path) -> str:
    parts = [INTRODUCTION]
    if whole := WHOLE.stored(folder):
        parts += [WHOLE_STEPS, *(whole_section(threads, entries) for threads, entries in whole.items())]
    if steps := BACKWARD.stored(folder):
        parts += [FORWARD_BACKWARD, *(backward_section(threads, entries) for threads, entries in steps.items())]
    return "\n".join(parts)


def backward_section(threads: int, entries: Entries[BackwardResult]) -> str:
    return f"### Forward and backward, {_on(threads)}\n\n{made(entries)}\n\n{BACKWARD.markdown(entries)}\n"


def whole_section(threads: int, entries: Entries[WholeResult]) -> str:
    rows = [
        [model, f"{1000 * entry.results[0].seconds:.3f}", *(speed(best(entry, column)) for column in COLUMNS)]
        for model, entry in entries.items()
    ]
    return "\n\n".join(
        [
            f"### Whole steps, {_on(threads)}",
            f"How many times eager's speed. {made(entries)}",
            table(["model", "eager ms", *COLUMNS], rows, markdown=True),
            said_of_bits(entries),
            "Each way by itself:",
            f"{WHOLE.markdown(entries)}\n",
        ]
    )


def _on(threads: int) -> str:
    return "one thread" if threads == 1 else f"{threads} threads"


def made(entries: Entries[R]) -> str:
    """How the figures were made, in a sentence."""

    def how(entry: Entry[R]) -> str:
        versions = " and ".join([f"torch {entry.torch}", *([f"JAX {entry.jax}"] if entry.jax else [])])
        return " on ".join([f"`{entry.command}` with {versions}", *([entry.machine] if entry.machine else [])])

    return f"Made by {'; and by '.join(dict.fromkeys(map(how, entries.values())))}."


def said_of_bits(entries: Entries[WholeResult]) -> str:
    """On how many models the parameters were eager's, bit for bit: with what, a sentence for each number."""
    found = {name: _eagers(entries, name) for name in _contenders(entries)}
    names: dict[tuple[int, int], list[str]] = defaultdict(list)
    for name, own in found.items():
        if own:
            names[sum(own), len(own)].append(f"`{name}`")
    counts = sorted(names, key=lambda count: (-count[0], -count[1]))
    lines = [f"- on {same} of {of} with {', '.join(names[same, of])}" for same, of in counts]
    return "\n".join(["Models whose parameters are eager's after the first steps, bit for bit:", "", *lines])


def _eagers(entries: Entries[WholeResult], contender: str) -> list[bool]:
    """Of each model that it could run, whether the parameters were eager's."""
    found = [entry.find(contender) for entry in entries.values()]
    return [result.is_eagers for result in found if result is not None and not result.error]


def best(entry: Entry[WholeResult], column: str) -> WholeResult | None:
    """The quickest of the column's contenders; one that raised, if all did; ``None`` where none took part."""
    found = [result for result in entry.results if fnmatchcase(result.contender, COLUMNS[column].contenders)]
    return min(found, key=lambda result: (bool(result.error), result.ratio), default=None)


def speeds_of(entries: Entries[WholeResult]) -> Series:
    ratios = ratios_of(entries, COLUMNS, best)
    return {name: {place: 1 / ratio for place, ratio in own.items()} for name, own in ratios.items()}


def _contenders(entries: Entries[R]) -> list[str]:
    """All but eager, in the order in which they are stored."""
    return list(dict.fromkeys(result.contender for entry in entries.values() for result in entry.results[1:]))


def ratios_of(entries: Entries[R], names: Iterable[str], find: Callable[[Entry[R], str], R | None]) -> Series:
    """Time of a step, of eager's, for those of ``names`` that have one."""
    found: Series = {name: {} for name in names}
    for place, entry in enumerate(entries.values()):
        for name, own in found.items():
            if (result := find(entry, name)) is not None and not result.error:
                own[place] = result.ratio
    return {name: own for name, own in found.items() if own}


def save_plot(
    by_threads: dict[int, Entries[R]], series: dict[int, Series], label: str, path: Path, colours: dict[str, str] | None = None
) -> None:
    """For each number of threads, one group of bars per model, up from 1, which is eager, or down from it."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 1 + 4 * len(by_threads)), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(len(by_threads), squeeze=False)[:, 0]
    for axes, (threads, entries) in zip(panels, by_threads.items()):
        bars = series[threads]
        width = 0.8 / max(len(bars), 1)
        for number, (name, values) in enumerate(bars.items()):
            places = [place + (number - (len(bars) - 1) / 2) * width for place in values]
            colour = (colours or {}).get(name)
            axes.bar(places, [value - 1 for value in values.values()], width, bottom=1, label=name, color=colour)
        axes.axhline(1, color="black", linewidth=0.8)
        axes.set_yscale("log", base=2)
        axes.yaxis.set_major_formatter("{x:g}")
        axes.set_xticks(range(len(entries)), entries)
        axes.set_title(_on(threads))
        axes.set_ylabel(label)
        axes.grid(axis="y", alpha=0.3)
        axes.legend(fontsize="small")
    figure.savefig(path, dpi=130)


if __name__ == "__main__":
    write(DOCS)
