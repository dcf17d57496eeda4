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

from gradc.policy.ab_timer import Arm
from tests.world.harness.run import NUM_STEPS, Result, Verdict
from tests.world.harness.settling import QUIET_STEPS, SECONDS, Settled
from tests.world.harness.training import DOCUMENTED_WAYS

DOCS = pathlib.Path(__file__).parents[3] / "docs"
RECORDS = DOCS / "world"

MOST_RATIO, MOST_FIRSTS, MOST_FIRST_S = 1.1, 10.0, 5.0

HEAD = f"""# Unmodified libraries

Written by `make world` (`python -m tests.world`) with torch {torch.__version__.split("+")[0]}, one thread: small random
models, {NUM_STEPS} steps each. Compared with eager, bit for bit, after each step: losses, gradients, parameters, buffers,
optimizer state, and the generators of torch, NumPy and Python. Each case and way is a process of its own, in which eager
trains twice first: what eager does not do twice is nothing to compare with. The cases are the files of `tests/world/cases`.

The ways: `model`, the model compiled; `captured`, with backward passes captured by compiled autograd besides; `step`,
forward, backward and optimizer compiled as one function. `Dynamo` is `torch.compile(model, backend="eager")`: its capture,
run as it is.

First steps in seconds. Ratios of settled steps to eager's: the compiled training goes on until {QUIET_STEPS} steps in a row
compiled nothing and every trial is decided (see [What pays](notes/what-pays.md)), then the two make their steps in turns, and
the means count, without the slowest and the fastest tenth, or one. `settled after`: how many steps that took, by
{", ".join(DOCUMENTED_WAYS)}; `> n`: not within
{SECONDS:.0f} s of computing, and timed as it was. `(eager)` behind a ratio: the trial chose eager for something, which then
runs as eager does, but for native updates inside of it; `(captured)`: and for its backward passes, which are captured.
**All times are of the process, not of the wall**, so that other processes count as little as can be.

The bars: a settled step takes at most {MOST_RATIO} of eager's, a first step at most {MOST_FIRSTS:.0f} of eager's or
{MOST_FIRST_S:.0f} s, whichever is more.
"""
COLUMNS = ["case", *DOCUMENTED_WAYS, "Dynamo", "graphs", "first step: eager", "Dynamo", *DOCUMENTED_WAYS]
WAYS_TIMED = ("dynamo", *DOCUMENTED_WAYS)


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
    settled = kept.get("settled")
    typed = {
        "verdict": Verdict(kept["verdict"]),
        "differences": tuple(kept["differences"]),
        "settled": settled and Settled(**settled),
    }
    return Result(**{**kept, **typed})


def page(records: dict[str, Record]) -> str:
    versions = {name: version for record in records.values() for name, version in record.versions.items()}
    said = ", ".join(f"{name} {version}" for name, version in sorted(versions.items()))
    lines = [HEAD, f"Versions: {said}.", ""]
    lines += _verdicts(records) + _over(records) + _left_out(records)
    return "\n".join(lines) + "\n"


def _verdicts(records: dict[str, Record]) -> list[str]:
    columns = [*COLUMNS, *(f"ratio: {way}" for way in DOCUMENTED_WAYS), "settled after"]
    num_words = 2 + len(DOCUMENTED_WAYS)
    rows = [f"| {' | '.join(columns)} |", "|" + "---|" * num_words + "---:|" * (len(columns) - num_words)]
    for record in records.values():
        of = collections.defaultdict(lambda: Result(Verdict.CRASHED), record.ways)
        verdicts = [_verdict(of[way]) for way in (*DOCUMENTED_WAYS, "dynamo")]
        times = [_seconds(of["model"], of["model"].first_eager_s), *(_seconds(of[way], of[way].first_s) for way in WAYS_TIMED)]
        ratios, settled = [_ratio(of[way]) for way in DOCUMENTED_WAYS], " / ".join(_settled(of[way]) for way in DOCUMENTED_WAYS)
        cells = [*verdicts, str(of["model"].num_graphs), *times, *ratios, settled]
        rows.append(f"| {record.title} | {' | '.join(cells)} |")
    return [*rows, ""]


def _verdict(result: Result) -> str:
    return f"{result.verdict} ({result.num_differences})" if result.verdict is Verdict.DIFFERS else str(result.verdict)


def _seconds(result: Result, seconds: float) -> str:
    return f"{seconds:.1f}" if result.settled is not None else ""  # or they were taken otherwise, or not at all


def _ratio(result: Result) -> str:
    if result.ratio is None or result.settled is None:
        return ""
    chosen = next((arm.value for arm in (Arm.EAGER, Arm.CAPTURED) if result.chosen.get(arm.value)), None)
    return f"{result.ratio:.2f} ({chosen})" if chosen else f"{result.ratio:.2f}"


def _settled(result: Result) -> str:
    if result.settled is None:
        return ""
    return str(result.settled.num_steps) if result.settled.is_settled else f"> {result.settled.num_steps}"


def _over(records: dict[str, Record]) -> list[str]:
    """What is over the bars, one sentence each, and how much was not timed, of which nothing can be said."""
    found: list[str] = []
    results = [record.ways[way] for record in records.values() for way in DOCUMENTED_WAYS if way in record.ways]
    num_untimed = sum(result.settled is None for result in results)
    untimed = [f"Not timed: {num_untimed} of {len(results)} trainings.", ""] if num_untimed else []
    for record in records.values():
        for way in (way for way in DOCUMENTED_WAYS if way in record.ways):
            result = record.ways[way]
            if result.settled is None:
                continue
            if result.ratio is not None and result.ratio > MOST_RATIO:
                found.append(f"- {record.title}, {way}: a settled step takes {result.ratio:.2f} of eager's.")
            if result.first_s > max(MOST_FIRSTS * result.first_eager_s, MOST_FIRST_S):
                found.append(f"- {record.title}, {way}: the first step takes {result.first_s:.1f} s.{_by_dynamo(record)}")
    nothing = ["Nothing of what was timed."] if num_untimed else ["Nothing."]
    return ["## Over the bars", "", *untimed, *(found or nothing), ""]


def _by_dynamo(record: Record) -> str:
    return f" Dynamo alone: {record.ways['dynamo'].first_s:.1f} s." if "dynamo" in record.ways else ""


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
