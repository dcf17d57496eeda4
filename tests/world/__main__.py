"""Train small models of libraries that know nothing of gradc, unmodified, eagerly and compiled; write docs/world.md.

    python -m tests.world                       all cases (most of an hour); needs what gradc[world] names
    python -m tests.world --only timm peft      those whose names contain one of these
    python -m tests.world --jobs 2              so many processes beside each other
    python -m tests.world --ways model step     some of model, captured, step, dynamo: prints, writes nothing
    python -m tests.world --verdicts            are they eager's bits? Times nothing settled, writes nothing
    python -m tests.world --table               docs/world.md anew from what is in docs/world; runs nothing

Ends with 1 if a case is not eager's, bit for bit, one of gradc's ways.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import dataclasses
import importlib
import importlib.metadata
import json
import os
import pathlib
import pkgutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence

from benchmarks import headline
from tests.world import cases
from tests.world.harness import table
from tests.world.harness.run import Result, Verdict, without_folders
from tests.world.harness.torchvision_ops import declare_missing_ops
from tests.world.harness.training import DOCUMENTED_WAYS, WAYS

ROOT = pathlib.Path(__file__).parents[2]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.world", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--only", nargs="+", default=[""], metavar="PART")
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=[*WAYS])
    parser.add_argument("--timeout", type=float, default=300, help="seconds for one case, one way")
    parser.add_argument("--jobs", type=int, default=1, help="processes beside each other")
    parser.add_argument("--verdicts", action="store_true")
    parser.add_argument("--table", action="store_true")
    options = parser.parse_args()
    is_wrong, how = False, How(options.timeout, not options.verdicts)
    is_written = len(options.ways) == len(WAYS) and how.is_timed
    for case, ways in results(() if options.table else chosen(options.only), options.ways, how, options.jobs):
        is_wrong |= any(ways[way].verdict is not Verdict.BITWISE for way in DOCUMENTED_WAYS if way in ways)
        if is_written:
            table.write(case, table.Record(title(case), versions(case), ways))
    if options.table or is_written:
        records = {path.stem: table.read(path) for path in sorted(table.RECORDS.glob("*.json"))}
        (table.DOCS / "world.md").write_text(table.page(records))
        headline.write()
    return int(is_wrong)


@dataclasses.dataclass(frozen=True)
class How:
    """``timeout``: seconds for one case, one way. ``is_timed``: its settled steps, too."""

    timeout: float
    is_timed: bool = True


def results(names: Sequence[str], ways: Sequence[str], how: How, jobs: int) -> Iterator[tuple[str, dict[str, Result]]]:
    """Each case with its results, as soon as it has been trained each way."""
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        begun = {case: {way: pool.submit(in_a_process, case, way, how) for way in ways} for case in names}
        for case in names:
            yield case, {way: running.result() for way, running in begun[case].items()}


def chosen(parts: list[str]) -> list[str]:
    names = sorted(found.name for found in pkgutil.iter_modules(cases.__path__) if not found.name.startswith("_"))
    return [name for name in names if any(part in name for part in parts)]


def in_a_process(case: str, way: str, how: How) -> Result:
    """One case, one way, and what became of its process."""
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder, "result.json")
        asked = [case, way, str(path), *([] if how.is_timed else ["--verdict"])]
        code, said = _run([sys.executable, "-m", "tests.world.harness.run", *asked], how.timeout)
        if path.exists():
            result = table.result_of(json.loads(path.read_text()))
        else:
            verdict = Verdict.TIMED_OUT if code is None else Verdict.CRASHED
            result = Result(verdict, differences=tuple(without_folders(said).splitlines()[-12:]))
    print(f"{case} {way}: {said_of(result)}", flush=True)
    return result


def _run(command: list[str], timeout: float) -> tuple[int | None, str]:
    """The exit code, None after ``timeout`` seconds, and what it said. What it started ends with it."""
    process = subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", start_new_session=True
    )
    try:
        said, _ = process.communicate(timeout=timeout)
        return process.returncode, said
    except BaseException as error:  # an interrupt, too: it has a session of its own, and would go on
        os.killpg(process.pid, signal.SIGKILL)
        if not isinstance(error, subprocess.TimeoutExpired):
            raise
        return None, process.communicate()[0]


def said_of(result: Result) -> str:
    """A result in a line, and one more for whatever was left out or differs."""
    first = f"{result.num_graphs} graphs, first step {result.first_s:.1f} s ({result.first_eager_s:.1f})"
    lines = [", ".join((str(result.verdict), first, *settled_of(result)))]
    for reasons in (result.uncompiled, result.fallbacks):
        lines += [f"    {number} {reason}: {result.places.get(reason, '')}" for reason, number in reasons.items()]
    return "\n".join([*lines, *(f"    {line[:240]}" for line in result.differences)])


def settled_of(result: Result) -> list[str]:
    if result.ratio is None or result.settled is None:
        return []
    steps = f"settled after {result.settled.num_steps} steps" if result.settled.is_settled else "not settled"
    return [f"{result.ratio:.2f} of eager", steps, *(f"{arm}: {number}" for arm, number in result.chosen.items())]


def title(case: str) -> str:
    """The first line of the case's docstring."""
    module = importlib.import_module(f"tests.world.cases.{case}")
    return (module.__doc__ or case).split("\n")[0].rstrip(".")


def versions(case: str) -> dict[str, str]:
    module = importlib.import_module(f"tests.world.cases.{case}")
    return {name: importlib.metadata.version(name) for name in module.LIBRARIES}


if __name__ == "__main__":
    declare_missing_ops()
    sys.exit(main())
