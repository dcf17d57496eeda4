"""A process that judges items of parts on a device, one after the other, and the side of it that asks.

    Worker.judge: (part, item, seconds) -> iterator of Verdict

    python -m tests.cuda.worker TARGET        TARGET: tests.cuda.parts.Target as JSON

It is started anew, and never forked: CUDA does not live through a fork. It reads a line of JSON for each item and writes one
for each verdict, and one that ends them. What else is printed there goes to its log. After an error of CUDA the device is lost
to the process: it ends, and another one goes on.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import pathlib
import select
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator, Mapping
from typing import IO

import torch

from benchmarks.devices import DETERMINISTIC_CUBLAS
from tests.cuda.parts import PARTS, Part, Target, put_numbers_in_order
from tests.cuda.verdict import Status, Verdict, of_line

ROOT = pathlib.Path(__file__).parents[2]
SECONDS_OF_A_START = 120.0  # of the process, and of what it does first on the device
CHECKED = {"GRADC_COMPILE_SECONDS": "none", "GRADC_COMPARE_WITH_EAGER": "0", "GRADC_VERIFY": "1"}
TIMED = {**CHECKED, "GRADC_VERIFY": "0"}


def _settings(part: Part) -> Mapping[str, str]:
    return TIMED if part.is_timed else CHECKED


class StartError(RuntimeError):
    """Nothing can be judged: no process gets as far as to have the device."""


class _Ended(Exception):
    """The process ended."""


class Worker:
    """See the module's docstring. ``log`` gets what the process prints."""

    def __init__(self, target: Target, log: pathlib.Path) -> None:
        self._target, self._log = target, log
        self._process: subprocess.Popen[bytes] | None = None
        self._settings: Mapping[str, str] = {}
        self._compiler, self._rest = "", b""

    def begin(self, part: str) -> None:
        """Start the process, which takes seconds, before the time of the first part, ``part``, runs.

        Raises:
            StartError
        """
        self._started(_settings(PARTS[part]), self._target.compiler)

    def judge(self, name: str, item: str, seconds: float, limit: float) -> Iterator[Verdict]:
        """Its verdicts; the last one may be that the process crashed, or was ended after ``limit``.

        Raises:
            StartError
        """
        start, part, is_named = time.monotonic(), PARTS[name], False
        try:
            for verdict in self._asked(part, self._target.compiler, name, item, seconds, limit):
                is_named |= verdict.is_bad
                yield dataclasses.replace(verdict, part=name, seconds=round(time.monotonic() - start, 3))
        except TimeoutError:
            yield Verdict(name, item, Status.HANGS, f"ended after {limit:.0f} s", round(limit, 3))
        except _Ended as ended:
            if not is_named:
                yield self._crash(part, name, item, str(ended), limit)

    def _crash(self, part: Part, name: str, item: str, ending: str, limit: float) -> Verdict:
        try:
            for _ in self._asked(part, "eager", name, item, limit, limit):
                pass
        except (_Ended, TimeoutError):
            return Verdict(name, item, Status.OTHER, f"the process ends in eager, too: {ending}")
        return Verdict(name, item, Status.CRASHES, ending)

    def _asked(self, part: Part, compiler: str, name: str, item: str, seconds: float, limit: float) -> Iterator[Verdict]:
        process = self._started(_settings(part), compiler)
        assert process.stdin is not None
        process.stdin.write(json.dumps({"part": name, "item": item, "seconds": seconds}).encode() + b"\n")
        process.stdin.flush()
        end = time.monotonic() + limit
        while (line := self._line(end)) != "done":
            yield of_line(line)

    def _started(self, settings: Mapping[str, str], compiler: str) -> subprocess.Popen[bytes]:
        is_another = (settings, compiler) != (self._settings, self._compiler)
        if self._process is not None and (is_another or self._process.poll() is not None):
            self.end()
        if self._process is None:
            self._settings, self._compiler, self._rest = settings, compiler, b""
            self._process = self.start(settings, compiler)
            try:
                self._line(time.monotonic() + SECONDS_OF_A_START)
            except (_Ended, TimeoutError) as error:
                raise StartError(f"no process can be started: {error or 'it is silent'}") from error
        return self._process

    def start(self, settings: Mapping[str, str], compiler: str) -> subprocess.Popen[bytes]:
        target = dataclasses.replace(self._target, compiler=compiler)
        words = [sys.executable, "-X", "faulthandler", "-m", "tests.cuda.worker", json.dumps(dataclasses.asdict(target))]
        beside = str(pathlib.Path(sys.executable).parent)  # where what compiles a simulated device is
        path = os.pathsep.join((beside, os.environ["PATH"]))
        environment = {**os.environ, **dict([DETERMINISTIC_CUBLAS]), **settings, "PATH": path}
        with self._log.open("ab") as log:
            return subprocess.Popen(words, cwd=ROOT, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log)

    def _line(self, end: float) -> str:
        assert self._process is not None and self._process.stdout is not None
        while b"\n" not in self._rest:
            if not select.select([self._process.stdout], [], [], max(0.0, end - time.monotonic()))[0]:
                self.end()
                raise TimeoutError
            read = os.read(self._process.stdout.fileno(), 1 << 16)
            if not read:
                raise _Ended(f"the process ended with {self._process.wait()}; {self._last_words()}")
            self._rest += read
        line, _, self._rest = self._rest.partition(b"\n")
        return line.decode()

    def _last_words(self) -> str:
        text = self._log.read_text(errors="replace") if self._log.exists() else ""
        lines = [line for line in text.splitlines()[-30:] if line.strip()]
        told = [line for line in lines if "rror" in line or "assert" in line] or lines
        return told[-1][:300] if told else "it said nothing"

    def end(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            for pipe in (self._process.stdin, self._process.stdout):
                pipe.close()  # type: ignore[union-attr]
            self._process = None


# ---- the process


def main(text: str) -> None:
    target, answers = Target(**json.loads(text)), _answers()
    warnings.simplefilter("ignore")
    logging.disable(logging.ERROR)
    torch.set_num_threads(1)
    _begin(target)
    _answer(answers, "started")
    for line in sys.stdin:
        asked = json.loads(line)
        if not PARTS[asked["part"]].is_timed:
            put_numbers_in_order(target)
        for verdict in _judged(target, **asked):
            _answer(answers, verdict.line())
        if target.is_gpu:
            torch.cuda.synchronize()  # or an error of the last kernel would be the next item's
        _answer(answers, "done")


def _answers() -> IO[bytes]:
    """What was the process's output; from here on, what is printed goes where its errors go."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    return answers


def _answer(answers: IO[bytes], line: str) -> None:
    answers.write(line.encode() + b"\n")
    answers.flush()


def _begin(target: Target) -> None:
    from tests.devices import processes, simulated

    if target.device == simulated.NAME:
        simulated.register(processes.BUILD)
    torch.ones(2, device=target.place)


def _judged(target: Target, part: str, item: str, seconds: float) -> Iterator[Verdict]:
    try:
        yield from PARTS[part].judge(target, item, seconds)
    except Exception as error:  # outside of what is compared
        if "CUDA error" in str(error):
            raise
        yield Verdict(part, item, Status.WRONG, f"raises {type(error).__name__}: {error}"[:1000])


if __name__ == "__main__":
    main(*sys.argv[1:])
