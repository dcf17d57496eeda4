"""The README's tables and picture: gradc beside torch.compile, by the figures that stand in docs. Nothing is measured here.

python -m benchmarks.headline          writes both anew, as all do that write those pages

parts: () -> what of it is calculated          description: () -> what the picture shows, in words, for who cannot see it
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterator
from pathlib import Path

from benchmarks.report import COLUMNS, OURS, THEIRS, WHOLE, Row, best, speed
from benchmarks.results import DOCS, Entries, WholeResult
from gradc import text_table

README = DOCS.parent / "README.md"
PICTURE = DOCS / "headline.png"
EXACT = ["what is compared with eager, bit for bit", "of", "torch.compile differs in", "gradc differs in"]
FIRST = ["first: torch.compile s", "first: gradc s"]
SPEED = ["a whole step with Adam", "eager ms", "torch.compile ms", "JAX ms", "gradc ms", *FIRST]
JAX = "JAX, best"
LABELS = {THEIRS: "torch.compile, the best of its settings", JAX: "JAX", OURS: "gradc, with the bits of eager"}
PLATE = {"facecolor": "white", "edgecolor": "none", "pad": 0.5}  # under a figure, over the line at 1


def parts() -> dict[str, str]:
    """What of the README is calculated, each by the line that it begins with."""
    exact = text_table.table(EXACT, [*parity()], markdown=True)
    speed = text_table.table(SPEED, [*speeds()], markdown=True)
    return {_first(exact): exact, _first(speed): speed, LIBRARIES: libraries()}


def _first(text: str) -> str:
    return text.partition("\n")[0]


def parity() -> Iterator[Row]:
    """What differs under each, from the pages that `make sweep` and `make world` write."""
    behaviours = cells("semantics")[:4]
    aot_eager, inductor, gradc = behaviours[3][1:]
    yield ["behaviours of autograd", behaviours[0][0].split()[1], f"{inductor}; {aot_eager} (aot_eager)", gradc]
    for order, name in (("1", "gradients"), ("2", "second derivatives")):
        (total, theirs), (_, ours) = (_samples(compiler, order) for compiler in ("aot_eager", "gradc"))
        yield [f"{name} of samples of operators", f"{total:,}", f"{theirs:,} (aot_eager)", str(ours)]
    trainings = cells("architectures")[1:]
    theirs, ours = (sum(row[column] != "bitwise" for row in trainings) for column in (5, 4))
    yield ["trainings of transformer architectures", str(len(trainings)), f"{theirs} (aot_eager)", str(ours)]
    theirs, ours = (sum(set(row[columns]) != {"bitwise"} for row in _loops()) for columns in (slice(4, 5), slice(1, 4)))
    yield ["training loops of unmodified libraries", str(len(_loops())), f"{theirs} (its front end alone)", str(ours)]


def _loops() -> list[Row]:
    return [row for row in cells("world") if len(row) > 12][1:]


LIBRARIES = "Of the training loops of "


def libraries() -> str:
    """How the times of a whole step lie over the libraries, where the step is compiled."""
    ratios = sorted(float(row[13].split()[0]) for row in _loops())
    faster = [ratio for ratio in ratios if ratio <= 1 / 1.1]
    middle = statistics.median(ratios)
    others = ratios[len(faster) :]
    return (
        f"{LIBRARIES}{len(ratios)} unmodified libraries, each compiled as a whole step, {len(faster)} take\n"
        f"{faster[0]:.2f} to {faster[-1]:.2f} of the time of eager, the others {others[0]:.2f} to {others[-1]:.2f}; "
        f"the median is {middle:.2f}."
    )


def _samples(compiler: str, order: str) -> tuple[int, int]:
    """How many there are, and how many differ or raise."""
    wanted = ["ops", "float32", order, "plain", compiler]
    row = next(row for row in cells("sweep") if row[:5] == wanted)
    numbers = [int(cell or 0) for cell in row[5:]]
    return sum(numbers), sum(numbers[6:])


def cells(name: str) -> list[Row]:
    """Those of the tables of a page of docs."""
    lines = (DOCS / f"{name}.md").read_text().splitlines()
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines if line.startswith("| ")]


def speeds() -> Iterator[Row]:
    for model, entry in whole_steps().items():
        theirs, jax, ours = (best(entry, column) for column in LABELS)
        times = (_milliseconds(each) for each in (entry.results[0], theirs, jax, ours))
        yield [model, *times, *("" if each is None else f"{each.first_call:.2f}" for each in (theirs, ours))]


def _milliseconds(result: WholeResult | None) -> str:
    return "" if result is None or result.error else f"{1000 * result.seconds:.3g}"


def whole_steps() -> Entries[WholeResult]:
    """Those on one thread, as `gradc bench step` stores them."""
    return WHOLE.stored(DOCS)[1]


def description() -> str:
    steps = [
        f"{model}: " + ", ".join(f"{name} {speed(best(entry, name))}" for name in LABELS)
        for model, entry in whole_steps().items()
    ]
    return f"{title()}. {'; '.join(steps)}."


def title() -> str:
    entry = next(iter(whole_steps().values()))
    return f"A whole training step with Adam, in times of the speed of eager: one thread, {entry.machine}"


def save_picture(path: Path) -> None:
    """Three bars for each model, up from 1, which is eager, or down from it."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.4), layout="constrained")
    FigureCanvasAgg(figure)
    axes, found = figure.subplots(), whole_steps()
    for place, entry in enumerate(found.values()):
        for column, shift in zip(LABELS, (-0.28, 0.0, 0.28)):
            result = best(entry, column)
            if result is None or result.error:
                continue
            height = 1 / result.ratio
            axes.bar(place + shift, height - 1, 0.26, bottom=1, color=COLUMNS[column].colour)
            axes.text(place + shift, max(height, 1) * 1.05, speed(result), ha="center", fontsize=6.5, bbox=PLATE)
    axes.axhline(1, color="black", linewidth=0.8)
    axes.set_yscale("log", base=2)
    axes.yaxis.set_major_formatter("{x:g}")
    axes.set_xticks(range(len(found)), found, fontsize=8)
    axes.set_ylabel("times the speed of eager", fontsize=8)
    axes.set_title(title(), fontsize=9)
    axes.tick_params(axis="y", labelsize=8)
    axes.spines[["top", "right"]].set_visible(False)
    bars = [axes.bar(0, 0, bottom=1, color=COLUMNS[column].colour, label=label) for column, label in LABELS.items()]
    axes.legend(handles=bars, fontsize=8, frameon=False)
    figure.savefig(path, dpi=130, metadata={"Description": description()})


def with_parts(page: str) -> str:
    """``page`` with each part in the place of the table that has its head, or of as many lines that begin as it does."""
    for first, part in parts().items():
        rest = r"\n(?:\|.*\n)*" if first.startswith("|") else r".*\n" * len(part.splitlines())
        page = re.sub(f"^{re.escape(first)}{rest}", lambda _, part=part: f"{part}\n", page, count=1, flags=re.MULTILINE)
    return page


def write() -> None:
    save_picture(PICTURE)
    README.write_text(with_parts(README.read_text()))


if __name__ == "__main__":
    write()
