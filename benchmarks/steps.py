"""Whole steps (forward and backward) of every model in models.py: time, first call, peak memory; a table and a plot.

    gradc bench [--only mlp,gpt] [--contender NAME]... [--threads N] [--resume] [--seconds S] [--out FOLDER]

Writes FOLDER/benchmarks.md and FOLDER/benchmarks.png from FOLDER/benchmarks/*.json, one for each number of threads. A
model's results are stored as soon as it is done, in place of its older ones: an interrupted run loses nothing that is
finished, and ``--resume`` does the models that are not. With everything: about a quarter of an hour for each number of
threads, most of it in Inductor. Run it while the machine does nothing else.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import time
from pathlib import Path

import torch

import gradc
from benchmarks import headline
from benchmarks.common import CONTENDERS, Step, failure, first_call, fresh, peak_bytes, prepare, race, warm_up
from benchmarks.models import MODELS
from gradc.text_table import table

DOCS = Path(__file__).parent.parent / "docs"
HEADERS = ["model", "contender", "step ms", "of eager", "first call s", "peak MB", "of eager", "note"]
DEFAULT_CONTENDERS = [name for name in CONTENDERS if name != "torch.compile aot_eager"]
INTRODUCTION = """# Benchmarks

Whole training steps, forward and backward, without an optimizer. The contenders take turns in one process; a step's time is
the median over 40 rounds (in each, one step that is not timed goes first), and *of eager* the median over rounds of its ratio
to eager's in the same round. The first call includes capture and compilation, with the caches of all compilers off, but not
what compilers import: for that see [the first step of a process](benchmarks/first-call.md). Peak memory is the most that
torch's allocator holds during a step beyond the least, as the profiler sees it. The models are those of `benchmarks/models.py`,
the contenders those of `benchmarks/common.py`.

![step time of each contender, of eager's](benchmarks.png)
"""


@dataclasses.dataclass(frozen=True)
class Result:
    """What one contender did on one model.

    ``error`` is empty, or says why there are no figures. ``fallbacks`` counts, by reason, what gradc left to eager in a step.
    """

    contender: str
    seconds: float = 0.0
    ratio: float = 0.0
    first_call: float = 0.0
    peak_bytes: int = 0
    error: str = ""
    fallbacks: dict[str, int] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Entry:
    """A model's results, the first of which is eager's, and how they were made."""

    command: str
    torch: str
    minutes: float
    results: list[Result]

    def rows(self, model: str) -> list[list[str]]:
        eager = self.results[0]
        return [[model, result.contender, *_figures(result, eager)] for result in self.results]


Entries = dict[str, Entry]  # by model


def _figures(result: Result, eager: Result) -> list[str]:
    if result.error:
        return ["", "", "", "", "", result.error.replace("|", "\\|")]
    return [
        f"{1000 * result.seconds:.3f}",
        f"{result.ratio:.2f}",
        f"{result.first_call:.2f}",
        f"{result.peak_bytes / 1e6:.2f}",
        f"{result.peak_bytes / max(eager.peak_bytes, 1):.2f}",
        ", ".join(f"in eager, {number}x a step: {reason}" for reason, number in result.fallbacks.items()),
    ]


def main() -> None:
    options = parse()
    folder = Path(options.out)
    store = folder / "benchmarks" / f"threads-{options.threads}.json"
    entries = load(store)
    contenders = ["eager", *(name for name in options.contender or DEFAULT_CONTENDERS if name != "eager")]
    models = [model for model in options.only if not (options.resume and model in entries)]
    prepare(options.threads)
    warm_up(contenders)
    for model in models:
        start = time.perf_counter()
        results = measure(model, contenders, options.seconds)
        minutes = round((time.perf_counter() - start) / 60, 2)
        entries[model] = Entry(_command(), torch.__version__, minutes, results)
        save(entries, store)
        print(table(HEADERS, entries[model].rows(model)) + "\n", flush=True)
    write_report(folder)
    if folder == DOCS:
        headline.write()
    print(f"Table: {folder / 'benchmarks.md'}   plot: {folder / 'benchmarks.png'}   figures: {store}")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="gradc bench", description="Time training steps against eager and torch.compile.")
    parser.add_argument(
        "--only",
        type=matching_models,
        default=list(MODELS),
        metavar="NAME,...",
        help=f"parts of names, separated by commas, of: {', '.join(MODELS)}. Default: all",
    )
    parser.add_argument(
        "--contender",
        action="append",
        choices=CONTENDERS,
        metavar="NAME",
        help=f"beside eager; may be repeated. Of: {', '.join(CONTENDERS)}. Default: all but torch.compile aot_eager",
    )
    parser.add_argument("--threads", type=int, default=1, help="default: %(default)s")
    parser.add_argument("--seconds", type=float, default=4.0, help="of timing for each model; default: %(default)s")
    parser.add_argument("--resume", action="store_true", help="leave out the models that have results already")
    parser.add_argument("--out", default=str(DOCS), metavar="FOLDER", help="default: %(default)s")
    return parser.parse_args()


def matching_models(text: str) -> list[str]:
    """``"mlp,gpt" -> ["64-layer MLP", "GPT float32", "GPT bf16"]``"""
    parts = [part.strip().lower() for part in text.split(",")]
    for part in parts:
        if not part or not any(part in model.lower() for model in MODELS):
            raise argparse.ArgumentTypeError(f"no model's name contains {part!r}. There are: {', '.join(MODELS)}")
    return [model for model in MODELS if any(part in model.lower() for part in parts)]


def _command() -> str:
    return " ".join(["gradc bench", *(f'"{word}"' if " " in word else word for word in sys.argv[1:])])


def measure(model: str, contenders: list[str], seconds: float) -> list[Result]:
    torch._dynamo.reset()
    steps: dict[str, Step] = {}
    results: dict[str, Result] = {}
    for name in contenders:
        try:
            with CONTENDERS[name].settings():
                results[name], steps[name] = _warmed_up(model, name)
        except Exception as error:
            if name == "eager":
                raise
            results[name] = Result(name, error=failure(error))
    for name, timing in race(steps, seconds).items():
        results[name] = dataclasses.replace(results[name], seconds=timing.seconds, ratio=timing.ratio)
    return list(results.values())


def _warmed_up(model: str, contender: str) -> tuple[Result, Step]:
    torch.manual_seed(0)
    step = fresh("models").MODELS[model](CONTENDERS[contender].compile)
    seconds = first_call(step, contender, may_fall_back=True)
    for _ in range(5):
        step()
    peak, before = peak_bytes(step), gradc.counters["fallbacks"].copy()
    step()
    fallbacks = dict(gradc.counters["fallbacks"] - before)
    return Result(contender, first_call=seconds, peak_bytes=peak, fallbacks=fallbacks), step


def load(store: Path) -> Entries:
    if not store.exists():
        return {}
    entries = json.loads(store.read_text())
    return {
        model: Entry(**{**entry, "results": [Result(**result) for result in entry["results"]]})
        for model, entry in entries.items()
    }


def save(entries: Entries, store: Path) -> None:
    """Under another name first, so that an interruption leaves the old file or the new one."""
    store.parent.mkdir(parents=True, exist_ok=True)
    ordered = {model: dataclasses.asdict(entries[model]) for model in MODELS if model in entries}
    unfinished = store.with_suffix(".unfinished")
    unfinished.write_text(json.dumps(ordered, indent=1) + "\n")
    unfinished.replace(store)


def write_report(folder: Path) -> None:
    """The table and the plot of all that is stored."""
    by_threads = {int(path.stem.removeprefix("threads-")): load(path) for path in folder.glob("benchmarks/threads-*.json")}
    sections = [section(threads, by_threads[threads]) for threads in sorted(by_threads)]
    (folder / "benchmarks.md").write_text("\n".join([INTRODUCTION, *sections]))
    save_plot({threads: by_threads[threads] for threads in sorted(by_threads)}, folder / "benchmarks.png")


def section(threads: int, entries: Entries) -> str:
    made = dict.fromkeys(f"`{entry.command}` with torch {entry.torch}" for entry in entries.values())
    rows = [row for model, entry in entries.items() for row in entry.rows(model)]
    title = "One thread" if threads == 1 else f"{threads} threads"
    return f"## {title}\n\nMade by {', and '.join(made)}.\n\n{table(HEADERS, rows, markdown=True)}\n"


def save_plot(by_threads: dict[int, Entries], path: Path) -> None:
    """For each number of threads, one group of bars per model: time of a step, of eager's, up from 1 or down from it."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 1 + 4 * len(by_threads)), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(len(by_threads), squeeze=False)[:, 0]
    for axes, (threads, entries) in zip(panels, by_threads.items()):
        contenders = [name for name in CONTENDERS if name != "eager" and _ratios(entries, name)]
        width = 0.8 / max(len(contenders), 1)
        for number, contender in enumerate(contenders):
            ratios = _ratios(entries, contender)
            places = [place + (number - (len(contenders) - 1) / 2) * width for place in ratios]
            axes.bar(places, [ratio - 1 for ratio in ratios.values()], width, bottom=1, label=contender)
        axes.axhline(1, color="black", linewidth=0.8)
        axes.set_yscale("log", base=2)
        axes.yaxis.set_major_formatter("{x:g}")
        axes.set_xticks(range(len(entries)), entries)
        axes.set_title("one thread" if threads == 1 else f"{threads} threads")
        axes.set_ylabel("step time, of eager's\n(lower is better)")
        axes.grid(axis="y", alpha=0.3)
        axes.legend(fontsize="small")
    figure.savefig(path, dpi=130)


def _ratios(entries: Entries, contender: str) -> dict[int, float]:
    """Of the contender's steps to eager's, by the model's place."""
    return {
        place: result.ratio
        for place, entry in enumerate(entries.values())
        for result in entry.results
        if result.contender == contender and not result.error
    }


if __name__ == "__main__":
    main()
