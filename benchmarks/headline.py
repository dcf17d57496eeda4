"""The README's table and picture: gradc beside torch.compile, by the figures that stand in docs. Nothing is measured here.

python -m benchmarks.headline          writes both anew, as all do that write those pages

table: () -> Markdown          description: () -> what the picture shows, in words, for who cannot see it
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterator
from pathlib import Path

from gradc import text_table

DOCS = Path(__file__).parent.parent / "docs"
README = DOCS.parent / "README.md"
PICTURE = DOCS / "headline.png"
HEADERS = ["", "torch.compile", "gradc"]
THEIRS, THEIRS_IF_ASKED, OURS = "torch.compile", "torch.compile, autograd ops", "gradc"
COLOURS = {THEIRS: "#8fa3b8", THEIRS_IF_ASKED: "#cbd5df", OURS: "#c2410c"}
LABELS = {
    THEIRS: "torch.compile",
    THEIRS_IF_ASKED: "torch.compile with trace_autograd_ops; without, it raises",
    OURS: "gradc, bit for bit eager's",
}
PLATE = {"facecolor": "white", "edgecolor": "none", "pad": 0.5}  # under a figure, over the line at 1

Row = list[str]


@dataclasses.dataclass(frozen=True)
class Timed:
    """What a contender took for a model: a step of eager's, the first call in seconds; or an error."""

    ratio: float
    first_call: float
    error: str


Timings = dict[str, dict[str, Timed]]  # by model and contender


def table() -> str:
    return text_table.table(HEADERS, [*parity(), *speed(timings())], markdown=True)


def parity() -> Iterator[Row]:
    """What is eager's under each, from the pages that `make sweep` and `make world` write."""
    behaviours = cells("semantics")[:4]
    aot_eager, inductor, gradc = behaviours[3][1:]
    what = f"behaviours of autograd that are not eager's, of {behaviours[0][0].split()[1]}"
    yield [what, f"{aot_eager} (aot_eager), {inductor}", gradc]
    theirs, ours = (" / ".join(_not_eagers(compiler, order) for order in "12") for compiler in ("aot_eager", "gradc"))
    what = "samples of operators that are not eager's, or raise: first order / second order"
    yield [what, f"{theirs} (aot_eager)", ours]
    trainings = cells("architectures")[1:]
    theirs, ours = (str(sum(row[column] == "bitwise" for row in trainings)) for column in (5, 4))
    what = f"trainings of transformers' architectures that are eager's, bit for bit, of {len(trainings)}"
    yield [what, f"{theirs} (aot_eager)", ours]
    loops = [row for row in cells("world") if len(row) > 12][1:]
    theirs, ours = (str(sum(set(row[columns]) == {"bitwise"} for row in loops)) for columns in (slice(4, 5), slice(1, 4)))
    what = f"training loops of unmodified libraries that are eager's, bit for bit, of {len(loops)}"
    yield [what, f"{theirs} (its front end alone)", ours]


def _not_eagers(compiler: str, order: str) -> str:
    wanted = ["ops", "float32", order, "plain", compiler]
    row = next(row for row in cells("sweep") if row[:5] == wanted)
    return str(sum(int(cell or 0) for cell in row[11:]))


def cells(name: str) -> list[Row]:
    """Those of the tables of a page of docs."""
    lines = (DOCS / f"{name}.md").read_text().splitlines()
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines if line.startswith("| ")]


def speed(found: Timings) -> Iterator[Row]:
    for model, timed in found.items():
        yield [f"step time, eager = 1: {model}", _theirs(timed), _ratio(timed[OURS])]
    yield ["first call, in seconds", *(_range(found, contender) for contender in (THEIRS, OURS))]


def timings() -> Timings:
    """Those on one thread, as `gradc bench` stores them."""
    models = json.loads((DOCS / "benchmarks" / "threads-1.json").read_text())
    names = [field.name for field in dataclasses.fields(Timed)]
    return {
        model: {result["contender"]: Timed(*(result[name] for name in names)) for result in entry["results"]}
        for model, entry in models.items()
    }


def _theirs(timed: dict[str, Timed]) -> str:
    return _ratio(timed[THEIRS]) or f"raises; {_ratio(timed[THEIRS_IF_ASKED])} with `trace_autograd_ops`"


def _ratio(timed: Timed) -> str:
    return "" if timed.error else f"{timed.ratio:.2f}"


def _range(found: Timings, contender: str) -> str:
    seconds = [timed[contender].first_call for timed in found.values() if not timed[contender].error]
    return f"{min(seconds):.2f} to {max(seconds):.2f}"


def description() -> str:
    steps = [f"{model}: {THEIRS} {_theirs(timed)}, gradc {_ratio(timed[OURS])}" for model, timed in timings().items()]
    return f"Time of a training step on one thread, where eager's is 1. {'; '.join(steps)}."


def save_picture(path: Path) -> None:
    """Two bars for each model. Where torch.compile raises by itself, its bar is that of the setting with which it does not."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 2.9), layout="constrained")
    FigureCanvasAgg(figure)
    axes, found = figure.subplots(), timings()
    for place, timed in enumerate(found.values()):
        theirs = THEIRS_IF_ASKED if timed[THEIRS].error else THEIRS
        for contender, shift in ((theirs, -0.2), (OURS, 0.2)):
            ratio = timed[contender].ratio
            axes.bar(place + shift, ratio, 0.36, color=COLOURS[contender])
            axes.text(place + shift, ratio + 0.05, f"{ratio:.2f}", ha="center", fontsize=7.5, bbox=PLATE)
    axes.axhline(1, color="black", linewidth=0.8)
    axes.set_xticks(range(len(found)), found, fontsize=8)
    axes.set_ylabel("time of a step, eager = 1", fontsize=8)
    axes.tick_params(axis="y", labelsize=8)
    axes.spines[["top", "right"]].set_visible(False)
    bars = [axes.bar(0, 0, color=COLOURS[contender], label=label) for contender, label in LABELS.items()]
    axes.legend(handles=bars, fontsize=8, frameon=False)
    figure.savefig(path, dpi=130, metadata={"Description": description()})


def with_table(page: str) -> str:
    """``page`` with the table in the place of the one under the same headers."""
    head = re.escape(f"| {' | '.join(HEADERS)} |\n")
    return re.sub(rf"^{head}(?:\|.*\n)+", lambda _: f"{table()}\n", page, count=1, flags=re.MULTILINE)


def write() -> None:
    save_picture(PICTURE)
    README.write_text(with_table(README.read_text()))


if __name__ == "__main__":
    write()
