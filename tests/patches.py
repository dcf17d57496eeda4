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

import pytest

import gradc
from gradc.torch_private.patches import Patch
from tests import conftest  # noqa: F401 - sets what gradc reads when it is imported
from tests.torch_private.probes import PROBES, WITHOUT

_SECONDS = 300  # one probe; without its patch it may wait for what never comes
_WORDS = {0: "no longer needed: the probe passes without it", 1: "needed"}


def outcome(nodes: Sequence[str], without: str | None) -> int | str:
    """The exit status of pytest for these tests, without a patch; or the name of the signal that ended it."""
    child = os.fork()
    if child == 0:
        _run(nodes, without)
    end = time.monotonic() + _SECONDS
    while time.monotonic() < end:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else signal.Signals(-code).name
        time.sleep(0.05)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return "time"


def _run(nodes: Sequence[str], without: str | None) -> None:
    """In the forked process: it ends here."""
    with tempfile.TemporaryFile() as told:
        for number in (1, 2):
            os.dup2(told.fileno(), number)
        if without is not None:
            _leave_out(without)
        code = pytest.main(["-q", "-x", "-p", "no:cacheprovider", *nodes])
        os._exit(int(code))


def _leave_out(name: str) -> None:
    """Undo a patch, and do not apply it again."""
    apply = Patch.apply
    gradc.patches().undo()
    Patch.apply = lambda self: apply(self) if self.name != name else None  # type: ignore[method-assign]
    Patch.is_applied = property(lambda self: True)  # type: ignore[assignment,method-assign]


def rows(names: Sequence[str]) -> Iterator[tuple[str, str]]:
    """(patch, what became of its probe)."""
    for name in names:
        if name in WITHOUT:
            yield name, f"no probe: {WITHOUT[name]}"
            continue
        found = outcome([PROBES[name]], without=name)
        if found == 0 and outcome([PROBES[name]], without=None) != 0:
            found = "the probe fails, too, with the patch"
        yield name, _WORDS.get(found, f"needed: {found}") if isinstance(found, int) else f"needed: {found}"


def main(words: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.patches", description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("names", nargs="*", help="of patches; all, if none is named")
    known = [patch.name for patch in gradc.patches()]
    names = parser.parse_args(words).names or known
    unneeded = []
    for name, told in rows(names):
        print(f"{name:50} {told}", flush=True)
        unneeded += [name] if told == _WORDS[0] else []
    print(f"\n{len(names)} patches; of no use here: {', '.join(unneeded) or 'none'}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
