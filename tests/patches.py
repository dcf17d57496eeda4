"""Which of gradc's patches does the torch at hand still need? The probe of each is run with the patch off: ``make patches``.

    .venv/bin/python -m tests.patches                          all of them: a table, and those that seem to be needed no longer
    .venv/bin/python -m tests.patches keep_ops_whole ...       these

A probe is a test that fails without the patch, by its node id: see ``probes.py``. It runs in a process that is forked off, so
one that crashes, or waits for ever, ends nothing else. What no version of torch needs any more may go.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from typing import IO, Any

import pytest

from tests import conftest  # noqa: F401 - sets what gradc reads when it is imported

# isort: split
import gradc
from gradc.torch_private.patches import Patch
from tests.torch_private.probes import PROBES, WITHOUT

_SECONDS = 300  # one probe; without its patch it may wait for what never comes
_UNNEEDED = "no longer needed: the probe passes without it"


def outcome(node: str, without: str | None) -> tuple[str, str]:
    """How a test ends without a patch ("passed", "failed", or what became of the process), and the case that failed first."""
    with tempfile.TemporaryFile("w+") as told:
        child = os.fork()
        if child == 0:
            _run(node, without, told)
        end = _end_of(child)
        told.seek(0)
        return end, told.read() or node


def _end_of(child: int) -> str:
    last = time.monotonic() + _SECONDS
    while time.monotonic() < last:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            code = os.waitstatus_to_exitcode(status)
            if code < 0:
                return signal.Signals(-code).name
            return {0: "passed", 1: "failed"}.get(code, f"exit status {code}")
        time.sleep(0.05)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return f"no end within {_SECONDS} s"


class _First:
    """A plugin of pytest's: the case that failed first."""

    node = ""

    def pytest_runtest_logreport(self, report: Any) -> None:
        self.node = self.node or (report.nodeid if report.failed else "")


def _run(node: str, without: str | None, told: IO[str]) -> None:
    """In the forked process: it ends here."""
    silent, first = os.open(os.devnull, os.O_WRONLY), _First()
    for number in (1, 2):
        os.dup2(silent, number)
    if without is not None:
        _leave_out(without)
    gradc.patches().apply()
    code = pytest.main(["-q", "-x", "-p", "no:cacheprovider", node], plugins=[first])
    told.write(first.node)
    told.flush()
    os._exit(int(code))


def _leave_out(name: str) -> None:
    """Undo a patch, and do not apply it again."""
    apply = Patch.apply
    gradc.patches().undo()
    Patch.apply = lambda self: apply(self) if self.name != name else None  # type: ignore[method-assign]


def rows(names: Sequence[str]) -> Iterator[tuple[str, str]]:
    """(patch, what became of its probe)."""
    for name in names:
        if name in WITHOUT:
            yield name, f"no probe: {WITHOUT[name]}"
            continue
        end, node = outcome(PROBES[name], without=name)
        with_it, _ = outcome(node, without=None) if end != "passed" else (end, node)
        if with_it != "passed":
            yield name, f"the probe fails with the patch, too: {node}"
        else:
            yield name, _UNNEEDED if end == "passed" else f"needed: {end}, {node}"


def main(words: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.patches", description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("names", nargs="*", help="of patches; all, if none is named")
    names = parser.parse_args(words).names or [patch.name for patch in gradc.patches()]
    unneeded = []
    for name, told in rows(names):
        print(f"{name:46} {told}", flush=True)
        unneeded += [name] if told == _UNNEEDED else []
    print(f"\n{len(names)} patches; of no use here: {', '.join(unneeded) or 'none'}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
