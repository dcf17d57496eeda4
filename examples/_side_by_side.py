"""Train one thing three times, eagerly, by torch.compile and by gradc, and say whether the three are the same bit for bit.

    main: (build, steps, short steps) -> runs the command line of an example

``build`` is given a compiler and returns ``(step, parameters)``, where ``step(number)`` trains a step and returns the loss. The
three start from one seed, draw the same random numbers, and take turns step by step, so that their times can be compared.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib.util
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import gradc
from gradc.bits import same_bits
from gradc.text_table import table

Compile = Callable[[Any], Any]
Build = Callable[[Compile], tuple[Callable[[int], Tensor], Sequence[Tensor]]]
HEADERS = ["run", "{}", "bitwise eager", "largest param diff", "ms/step", "compile s"]


@dataclasses.dataclass
class Run:
    """One of the three. Of each step: the loss, the seconds, and by how much any parameter is away from eager's.

    Attributes:
        bitwise: each loss, gradient and parameter, after each step, was eager's bit for bit.
    """

    name: str
    step: Callable[[int], Tensor]
    parameters: Sequence[Tensor]
    generator: Tensor
    losses: list[Tensor] = dataclasses.field(default_factory=list)
    seconds: list[float] = dataclasses.field(default_factory=list)
    differences: list[float] = dataclasses.field(default_factory=list)
    bitwise: bool = True
    num_graphs: int = 0
    error: str = ""

    def train(self, number: int) -> None:
        """One step, with the random numbers of this run."""
        torch.set_rng_state(self.generator)
        graphs, start = _num_graphs(), time.perf_counter()
        try:
            self.losses.append(self.step(number).detach().clone())
        except Exception as error:  # torch.compile refuses some of what eager does
            self.error = f"{type(error).__name__}: {str(error).strip().splitlines()[0]}"
        self.seconds.append(time.perf_counter() - start)
        self.num_graphs += _num_graphs() - graphs
        self.generator = torch.get_rng_state()

    def compare(self, eager: Run) -> None:
        """After each step, for a difference may be gone again at the last one."""
        self.bitwise &= same_bits(self.result(), eager.result())
        pairs = zip(self.parameters, eager.parameters)
        self.differences.append(max((a - b).detach().double().abs().max().item() for a, b in pairs))

    def result(self) -> list[Tensor | None]:
        return [self.losses[-1], *self.parameters, *(parameter.grad for parameter in self.parameters)]


def main(build: Build, steps: int, short_steps: int, shows: str = "loss") -> None:
    """The command line of an example. ``shows``: what ``step`` returns, for the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--short", action="store_true", help="a few steps, and torch.compile without Inductor")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="save a picture there")
    arguments = parser.parse_args()
    warnings.filterwarnings("ignore", module="torch")
    runs = _train(build, short_steps if arguments.short else steps, "aot_eager" if arguments.short else "inductor")
    print(table([header.format(f"final {shows}") for header in HEADERS], [_row(run, runs[0]) for run in runs]))
    for run in runs:
        if run.error:
            print(f"{run.name}: {run.error}")
    print("gradc ran eagerly:", {**gradc.counters["fallbacks"], **gradc.counters["uncompiled"]} or "nothing")
    if compared := gradc.counters["stats"]["calls run eagerly to compare"]:
        print("calls that gradc made eagerly, to compare the times:", compared)
    if arguments.out:
        print("picture:", _save_picture(runs, arguments.out, shows))


def _train(build: Build, steps: int, backend: str) -> list[Run]:
    compilers: dict[str, Compile] = {
        "eager": lambda target: target,
        "torch.compile": lambda target: torch.compile(target, backend=backend),
        "gradc": gradc.compile,
    }
    runs = []
    for name, compile in compilers.items():
        own_build = _anew(build)
        torch.manual_seed(0)
        runs.append(Run(name, *own_build(compile), torch.get_rng_state()))
    for number in range(steps):
        for run in (run for run in runs if not run.error):
            run.train(number)
            if not run.error:
                run.compare(runs[0])
    return runs


def _anew(build: Build) -> Build:
    """``build`` from a new copy of its file: with the code, Dynamo keeps what it made of it, and that it gave it up."""
    spec = importlib.util.spec_from_file_location("example", build.__code__.co_filename)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return getattr(module, build.__name__)


def _num_graphs() -> int:
    return torch._dynamo.utils.counters["stats"]["unique_graphs"]


def _row(run: Run, eager: Run) -> list[str]:
    if run.error:
        return [run.name, "-", "raises", "-", "-", "-"]
    median = statistics.median(run.seconds)
    return [
        run.name,
        f"{run.losses[-1].item():.6f}",
        "not compiled" if run is not eager and not run.num_graphs else "yes" if run.bitwise else "no",
        f"{max(run.differences):.1e}" if any(run.differences) else "0",
        f"{1000 * median:.2f}",
        f"{max(0.0, run.seconds[0] - median):.1f}",
    ]


def _save_picture(runs: list[Run], folder: Path, shows: str) -> Path:
    """Left what the steps returned; right, step by step, the largest difference of any parameter from eager's."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4.2), layout="constrained")
    left, right = figure.subplots(1, 2)
    for run, style in zip(runs, ("-", (0, (6, 3)), (0, (2, 2)))):
        if not run.error:
            left.plot([loss.item() for loss in run.losses], label=run.name, linestyle=style, linewidth=2)
            right.plot(run.differences, label=run.name, linestyle=style, linewidth=2)
    left.set(title=shows, xlabel="step")
    right.set(title="Parameters: largest difference from eager (0: bit for bit)", xlabel="step")
    right.set_yscale("symlog", linthresh=1e-9)
    right.set_ylim(bottom=-2e-10)
    for axes in (left, right):
        axes.grid(alpha=0.3)
        axes.legend()
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{Path(sys.argv[0]).stem}.png"
    figure.savefig(path, dpi=110)
    return path
