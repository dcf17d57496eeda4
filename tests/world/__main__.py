"""Train small models of libraries that know nothing of gradc, unmodified, eagerly and compiled; write docs/world.md.

    python -m tests.world                       all cases (most of an hour); needs what gradc[world] names
    python -m tests.world --only timm peft      those whose names contain one of these
    python -m tests.world --ways model step     some of model, captured, step, dynamo: prints, writes nothing
    python -m tests.world --table               docs/world.md anew from what is in docs/world; runs nothing

Ends with 1 if a case is not eager's, bit for bit, one of gradc's ways.
"""

from __future__ import annotations

import argparse
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
    parser.add_argument("--table", action="store_true")
    options = parser.parse_args()
    is_wrong = False
    for case in () if options.table else chosen(options.only):
        ways = {way: in_a_process(case, way, options.timeout) for way in options.ways}
        is_wrong |= any(ways[way].verdict is not Verdict.BITWISE for way in DOCUMENTED_WAYS if way in ways)
        if len(ways) == len(WAYS):
            table.write(case, table.Record(title(case), versions(case), ways))
    if options.table or len(options.ways) == len(WAYS):
        records = {path.stem: table.read(path) for path in sorted(table.RECORDS.glob("*.json"))}
        (table.DOCS / "world.md").write_text(table.page(records))
    return int(is_wrong)


def chosen(parts: list[str]) -> list[str]:
    names = sorted(found.name for found in pkgutil.iter_modules(cases.__path__) if not found.name.startswith("_"))
    return [name for name in names if any(part in name for part in parts)]


def in_a_process(case: str, way: str, timeout: float) -> Result:
    """One case, one way, and what became of its process."""
    print(f"{case} {way}: ", end="", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder, "result.json")
        code, said = _run([sys.executable, "-m", "tests.world.harness.run", case, way, str(path)], timeout)
        if path.exists():
            result = table.result_of(json.loads(path.read_text()))
        else:
            verdict = Verdict.TIMED_OUT if code is None else Verdict.CRASHED
            result = Result(verdict, differences=tuple(without_folders(said).splitlines()[-12:]))
    _tell(result)
    return result


def _run(command: list[str], timeout: float) -> tuple[int | None, str]:
    """The exit code, None after ``timeout`` seconds, and what it said. What it started ends with it."""
    process = subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", start_new_session=True
    )
    try:
        said, _ = process.communicate(timeout=timeout)
        return process.returncode, said
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        return None, process.communicate()[0]


def _tell(result: Result) -> None:
    ratio = "" if result.ratio is None else f", {result.ratio:.2f} of eager"
    print(
        f"{result.verdict}, {result.num_graphs} graphs, first step {result.first_s:.1f} s ({result.first_eager_s:.1f}){ratio}"
    )
    for reasons in (result.uncompiled, result.fallbacks):
        for reason, number in reasons.items():
            print(f"    {number} {reason}: {result.places.get(reason, '')}")
    for line in result.differences:
        print(f"    {line[:240]}", flush=True)


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
