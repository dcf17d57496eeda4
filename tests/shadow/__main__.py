"""Run the tests with the first call of all that they compile verified: ``make shadow``.

    python -m tests.shadow [FILE or FOLDER ...] -> a line for each file; status 1 if shadow mode told a difference

Each file runs in a process of its own. A test that measures, or looks at what stays alive, may fail meanwhile: which do, and
why, is in expected.py; a failure that is not there is as bad as an alarm.
"""

from __future__ import annotations

import collections
import dataclasses
import json
import pathlib
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable

from tests.shadow.expected import EXPECTED, ON_PURPOSE

ROOT = pathlib.Path(__file__).parent.parent
LEFT_OUT = ("tests/shadow", "tests/world", "tests/peers")  # differences on purpose; programs of their own
SECONDS = 1800


@dataclasses.dataclass(frozen=True)
class Result:
    """
    Attributes:
        alarms, failed: tests in which shadow mode told a difference, and those that failed by themselves, but for the expected.
        num_expected: how many did as expected.
        tally: how much was verified and what was left out.
    """

    file: str
    alarms: tuple[str, ...] = ()
    failed: tuple[str, ...] = ()
    num_expected: int = 0
    is_complete: bool = False
    tally: dict[str, int] = dataclasses.field(default_factory=dict)

    @property
    def is_bad(self) -> bool:
        return bool(self.alarms or self.failed) or not self.is_complete


def files(arguments: Iterable[str]) -> list[str]:
    """The test files below these paths; without any, below tests."""
    paths = [pathlib.Path(argument) for argument in arguments] or [ROOT]
    found = sorted(file for path in paths for file in ([path] if path.is_file() else path.rglob("test_*.py")))
    names = [file.resolve().relative_to(ROOT.parent).as_posix() for file in found]
    return [name for name in names if not name.startswith(LEFT_OUT)]


def run(file: str) -> Result:
    with tempfile.TemporaryDirectory() as folder:
        tally = pathlib.Path(folder) / "tally.json"
        words = ["-m", "pytest", "-q", "-rfE", "--tb=short", "-p", "tests.shadow.alarms", "--tally", str(tally), file]
        try:
            done = subprocess.run([sys.executable, *words], capture_output=True, text=True, timeout=SECONDS, cwd=ROOT.parent)
        except subprocess.TimeoutExpired:
            return Result(file)
        counted = json.loads(tally.read_text()) if tally.exists() else {}
    told, failed = (re.findall(rf"^{word} ([^\s\[]+)", done.stdout, re.MULTILINE) for word in ("ERROR", "FAILED"))
    alarms = tuple(name for name in told if name not in ON_PURPOSE)
    unexpected = tuple(name for name in failed if name not in EXPECTED and name not in ON_PURPOSE)
    if alarms or unexpected:
        print(done.stdout)
    num_expected = len(told) + len(failed) - len(alarms) - len(unexpected)
    return Result(file, alarms, unexpected, num_expected, done.returncode in (0, 1), counted)


def line(result: Result) -> str:
    calls, backwards = (result.tally.get(name, 0) for name in ("calls", "backwards"))
    parts = [f"{calls:5} calls {backwards:5} backwards  {result.file}"]
    parts += [f"{result.num_expected} as expected"] if result.num_expected else []
    for word, names in (("alarm", result.alarms), ("failed", result.failed)):
        parts += [f"{word}: {name}" + (f" ({n} times)" if n > 1 else "") for name, n in collections.Counter(names).items()]
    parts += [] if result.is_complete else ["did not end"]
    return "  ".join(parts)


def main(arguments: list[str]) -> int:
    total: collections.Counter[str] = collections.Counter()
    bad = []
    for file in files(arguments):
        result = run(file)
        print(line(result), flush=True)
        total.update(result.tally)
        bad += [result.file] if result.is_bad else []
    for name, number in total.most_common():
        print(f"{number:7} {name}")
    print("\n".join(["", "BAD:", *bad]) if bad else "no alarm")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
