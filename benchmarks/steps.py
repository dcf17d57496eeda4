"""Whole steps (forward and backward) of every model in models.py: time, first call, peak memory; a table and a plot.

    python -m benchmarks.steps [--model NAME]... [--contender NAME]... [--threads N] [--out FOLDER]

With everything: about half an hour, most of it in Inductor. Run it while the machine does nothing else.
"""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path

import torch

from benchmarks.common import CONTENDERS, Step, Timing, first_call, fresh, peak_bytes, prepare, race, reported, warm_up
from benchmarks.models import MODELS
from gradc.report.table import table

HEADERS = ["model", "contender", "step ms", "of eager", "first call s", "peak MB"]
DEFAULT_CONTENDERS = [name for name in CONTENDERS if name != "torch.compile aot_eager"]


@dataclasses.dataclass(frozen=True)
class Result:
    model: str
    contender: str
    timing: Timing
    first_call: float
    peak_bytes: int

    def row(self) -> list[str]:
        return [
            self.model,
            self.contender,
            f"{1000 * self.timing.seconds:.3f}",
            f"{self.timing.ratio:.2f}",
            f"{self.first_call:.2f}",
            f"{self.peak_bytes / 1e6:.2f}",
        ]


def main() -> None:
    options = parse()
    prepare(options.threads)
    contenders = ["eager", *(name for name in options.contender or DEFAULT_CONTENDERS if name != "eager")]
    warm_up(contenders)
    results: list[Result] = []
    for model in options.model or MODELS:
        results += measure(model, contenders)
        print(table(HEADERS, [result.row() for result in results if result.model == model]) + "\n", flush=True)
    folder = Path(options.out)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "steps.md").write_text(table(HEADERS, [result.row() for result in results], markdown=True) + "\n")
    save_plot(results, folder / "steps.png")
    print(f"Table: {folder / 'steps.md'}   plot: {folder / 'steps.png'}")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Time training steps against eager and torch.compile.")
    parser.add_argument("--model", action="append", choices=MODELS, metavar="NAME", help=f"of: {', '.join(MODELS)}")
    parser.add_argument("--contender", action="append", choices=CONTENDERS, metavar="NAME", help=", ".join(CONTENDERS))
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", default="demo-out", metavar="FOLDER")
    return parser.parse_args()


def measure(model: str, contenders: list[str]) -> list[Result]:
    torch._dynamo.reset()
    steps: dict[str, Step] = {}
    first_calls: dict[str, float] = {}
    peaks: dict[str, int] = {}
    for name in contenders:
        with reported(f"{model}, {name}"), CONTENDERS[name].settings():
            torch.manual_seed(0)
            step = fresh("models").MODELS[model](CONTENDERS[name].compile)
            first_calls[name] = first_call(step, name)
            for _ in range(5):
                step()
            peaks[name] = peak_bytes(step)
            steps[name] = step
    timings = race(steps)
    return [Result(model, name, timings[name], first_calls[name], peaks[name]) for name in steps]


def save_plot(results: list[Result], path: Path) -> None:
    """One group of bars per model: time of a step, of eager's."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    models = list(dict.fromkeys(result.model for result in results))
    contenders = list(dict.fromkeys(result.contender for result in results))
    figure = Figure(figsize=(1.5 + 1.3 * len(models), 4.5), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    width = 0.8 / len(contenders)
    for i, contender in enumerate(contenders):
        own = [result for result in results if result.contender == contender]
        places = [models.index(result.model) + (i - (len(contenders) - 1) / 2) * width for result in own]
        axes.bar(places, [result.timing.ratio for result in own], width, label=contender)
    axes.axhline(1, color="black", linewidth=0.8)
    axes.set_xticks(range(len(models)), models, rotation=20)
    axes.set_ylabel("step time, of eager (lower is better)")
    axes.legend()
    figure.savefig(path, dpi=130)


if __name__ == "__main__":
    main()
