"""The README's table and picture: gradc beside torch.compile, by the figures that stand in docs. Nothing is measured here.

python -m benchmarks.headline          writes both anew, as all do that write those pages

table: () -> Markdown          description: () -> what the picture shows, in words, for who cannot see it
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from benchmarks.report import BACKWARD, COLUMNS, OURS, THEIRS, WHOLE, Row, best, speed
from benchmarks.results import DOCS, Entries, WholeResult
from gradc import text_table

README = DOCS.parent / "README.md"
PICTURE = DOCS / "headline.png"
HEADERS = ["", "torch.compile", "gradc"]
LABELS = {THEIRS: "torch.compile, in the best of its settings", OURS: "gradc, bit for bit eager's"}
PLATE = {"facecolor": "white", "edgecolor": "none", "pad": 0.5}  # under a figure, over the line at 1


def table() -> str:
    return text_table.table(HEADERS, [*parity(), *speeds(), first_calls()], markdown=True)


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


def speeds() -> Iterator[Row]:
    for model, entry in whole_steps().items():
        yield [f"times eager's speed, whole step with Adam: {model}", *(speed(best(entry, column)) for column in LABELS)]


def whole_steps() -> Entries[WholeResult]:
    """Those on one thread, as `gradc bench step` stores them."""
    return WHOLE.stored(DOCS)[1]


def first_calls() -> Row:
    """Of the models' forward and backward, as `gradc bench` stores them."""
    return ["first call, in seconds", *map(_range, ("torch.compile", "gradc"))]


def _range(contender: str) -> str:
    found = [entry.find(contender) for entry in BACKWARD.stored(DOCS)[1].values()]
    seconds = [result.first_call for result in found if result is not None and not result.error]
    return f"{min(seconds):.2f} to {max(seconds):.2f}"


def description() -> str:
    steps = [
        f"{model}: torch.compile {speed(best(entry, THEIRS))}, gradc {speed(best(entry, OURS))}"
        for model, entry in whole_steps().items()
    ]
    return f"How many times faster than eager's a whole training step with Adam is, on one thread. {'; '.join(steps)}."


def save_picture(path: Path) -> None:
    """Two bars for each model, up from 1, which is eager, or down from it."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 2.9), layout="constrained")
    FigureCanvasAgg(figure)
    axes, found = figure.subplots(), whole_steps()
    for place, entry in enumerate(found.values()):
        for column, shift in zip(LABELS, (-0.2, 0.2)):
            result = best(entry, column)
            if result is None or result.error:
                continue
            height = 1 / result.ratio
            axes.bar(place + shift, height - 1, 0.36, bottom=1, color=COLUMNS[column].colour)
            axes.text(place + shift, max(height, 1) * 1.05, speed(result), ha="center", fontsize=7.5, bbox=PLATE)
    axes.axhline(1, color="black", linewidth=0.8)
    axes.set_yscale("log", base=2)
    axes.yaxis.set_major_formatter("{x:g}")
    axes.set_xticks(range(len(found)), found, fontsize=8)
    axes.set_ylabel("times eager's speed", fontsize=8)
    axes.tick_params(axis="y", labelsize=8)
    axes.spines[["top", "right"]].set_visible(False)
    bars = [axes.bar(0, 0, bottom=1, color=COLUMNS[column].colour, label=label) for column, label in LABELS.items()]
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
