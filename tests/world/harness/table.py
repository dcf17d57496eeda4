"""Write docs/world.md from what the runs of the cases left in docs/world.

page: {case: Record} -> Markdown            Record: versions, and a Result for each way
"""

from __future__ import annotations

import collections
import dataclasses
import json
import pathlib
from typing import Any

import torch

from tests.world.harness.run import NUM_STEPS, Result, Verdict
from tests.world.harness.training import DOCUMENTED_WAYS

DOCS = pathlib.Path(__file__).parents[3] / "docs"
RECORDS = DOCS / "world"

HEAD = f"""# Unmodified libraries

Written by `make world` (`python -m tests.world`) with torch {torch.__version__.split("+")[0]}, one thread: small random
models, {NUM_STEPS} steps each. Compared with eager, bit for bit, after each step: losses, gradients, parameters, buffers,
optimizer state, and the generators of torch, NumPy and Python. Each case and way is a process of its own, in which eager
trains twice first: what eager does not do twice is nothing to compare with. The cases are the files of `tests/world/cases`.

The ways: `model`, the model compiled; `captured`, with backward passes captured by compiled autograd besides; `step`,
forward, backward and optimizer compiled as one function. `Dynamo` is `torch.compile(model, backend="eager")`: its capture,
run as it is.

First steps in seconds; ratios of settled steps to eager's, medians of steps made in turns. **The times were taken under load,
on a machine that others used too**: they tell minutes from seconds and little more. The verdicts do not depend on it.
"""
COLUMNS = ["case", *DOCUMENTED_WAYS, "Dynamo", "graphs", "first step: eager", "Dynamo", "model", "step"]


@dataclasses.dataclass(frozen=True)
class Record:
    """What docs/world keeps of one case."""

    title: str
    versions: dict[str, str]
    ways: dict[str, Result]


def write(case: str, record: Record) -> None:
    RECORDS.mkdir(exist_ok=True)
    (RECORDS / f"{case}.json").write_text(json.dumps(dataclasses.asdict(record), indent=1) + "\n")


def read(path: pathlib.Path) -> Record:
    kept = json.loads(path.read_text())
    return Record(kept["title"], kept["versions"], {way: result_of(found) for way, found in kept["ways"].items()})


def result_of(kept: dict[str, Any]) -> Result:
    return Result(**{**kept, "verdict": Verdict(kept["verdict"])})


def page(records: dict[str, Record]) -> str:
    versions = {name: version for record in records.values() for name, version in record.versions.items()}
    said = ", ".join(f"{name} {version}" for name, version in sorted(versions.items()))
    lines = [HEAD, f"Versions: {said}.", ""]
    lines += _verdicts(records) + _left_out(records)
    return "\n".join(lines) + "\n"


def _verdicts(records: dict[str, Record]) -> list[str]:
    columns = [*COLUMNS, *(f"ratio: {way}" for way in DOCUMENTED_WAYS)]
    rows = [f"| {' | '.join(columns)} |", "|---|" + "---|" * (len(DOCUMENTED_WAYS) + 1) + "---:|" * 8]
    for record in records.values():
        of = collections.defaultdict(lambda: Result(Verdict.CRASHED), record.ways)
        verdicts = [_verdict(of[way]) for way in (*DOCUMENTED_WAYS, "dynamo")]
        times = [of["model"].first_eager_s, of["dynamo"].first_s, of["model"].first_s, of["step"].first_s]
        ratios = ["" if (ratio := of[way].ratio) is None else f"{ratio:.2f}" for way in DOCUMENTED_WAYS]
        cells = [*verdicts, str(of["model"].num_graphs), *(f"{seconds:.1f}" for seconds in times), *ratios]
        rows.append(f"| {record.title} | {' | '.join(cells)} |")
    return [*rows, ""]


def _verdict(result: Result) -> str:
    return f"{result.verdict} ({result.num_differences})" if result.verdict is Verdict.DIFFERS else str(result.verdict)


def _left_out(records: dict[str, Record]) -> list[str]:
    """What was in no graph, or ran eagerly, with how often in all steps, each way that it was."""
    rows = ["## Not compiled", "", f"How often in {NUM_STEPS} steps, by {', '.join(DOCUMENTED_WAYS)}.", ""]
    rows += ["| case | what | reason | " + " | ".join(DOCUMENTED_WAYS) + " |", "|---|---|---|" + "---:|" * len(DOCUMENTED_WAYS)]
    for record in records.values():
        for what, word in (("uncompiled", "in no graph"), ("fallbacks", "ran eagerly")):
            counted = [getattr(record.ways[way], what) if way in record.ways else {} for way in DOCUMENTED_WAYS]
            for reason in sorted({reason for found in counted for reason in found}):
                cells = " | ".join(str(found.get(reason, "")) for found in counted)
                rows.append(f"| {record.title} | {word} | {reason.replace('|', chr(92) + '|')} | {cells} |")
    return rows
