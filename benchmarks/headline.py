"""The README's table and picture: gradc beside torch.compile, by the figures that stand in docs. Nothing is measured here.

python -m benchmarks.headline          writes both anew

table: () -> Markdown          description: () -> what the picture shows, in words, for who cannot see it
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from benchmarks.steps import DOCS, Entries, Entry, Result, load
from gradc import text_table

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


def table() -> str:
    return text_table.table(HEADERS, [*parity(), *speed(entries())], markdown=True)


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


def speed(found: Entries) -> Iterator[Row]:
    for model, entry in found.items():
        yield [f"step time, eager = 1: {model}", _theirs(entry), _ratio(_result(entry, OURS))]
    yield ["first call, in seconds", *(_range(found, contender) for contender in (THEIRS, OURS))]


def entries() -> Entries:
    """The benchmarks' results on one thread."""
    return load(DOCS / "benchmarks" / "threads-1.json")


def _result(entry: Entry, contender: str) -> Result:
    return next(result for result in entry.results if result.contender == contender)


def _theirs(entry: Entry) -> str:
    asked = _result(entry, THEIRS_IF_ASKED)
    return _ratio(_result(entry, THEIRS)) or f"raises; {_ratio(asked)} with `trace_autograd_ops`"


def _ratio(result: Result) -> str:
    return "" if result.error else f"{result.ratio:.2f}"


def _range(found: Entries, contender: str) -> str:
    seconds = [result.first_call for entry in found.values() if not (result := _result(entry, contender)).error]
    return f"{min(seconds):.2f} to {max(seconds):.2f}"


def description() -> str:
    steps = [f"{model}: {THEIRS} {_theirs(entry)}, gradc {_ratio(_result(entry, OURS))}" for model, entry in entries().items()]
    return f"Time of a training step on one thread, where eager's is 1. {'; '.join(steps)}."


def save_picture(path: Path) -> None:
    """Two bars for each model. Where torch.compile raises by itself, its bar is that of the setting with which it does not."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 2.9), layout="constrained")
    FigureCanvasAgg(figure)
    axes, found = figure.subplots(), entries()
    for place, entry in enumerate(found.values()):
        theirs = THEIRS_IF_ASKED if _result(entry, THEIRS).error else THEIRS
        for contender, shift in ((theirs, -0.2), (OURS, 0.2)):
            ratio = _result(entry, contender).ratio
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


if __name__ == "__main__":
    save_picture(PICTURE)
    README.write_text(with_table(README.read_text()))
